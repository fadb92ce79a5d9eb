"""A device of the planned size suffices for random settings, on the stand-in for a
GPU that counts its bytes.

`tests/runs/planning/test_plan.py` runs this file in a process of its own. Broken by what a run
holds and the plan leaves out.
"""

import random
from copy import deepcopy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from moe_lab.engine.engine import KVEngine
from moe_lab.engine.footprint import meta_model
from moe_lab.engine.forward.ensemble import Ensemble, ScaleSweep
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.pass_size import pass_budget, planned_memory
from moe_lab.engine.planned import Asked, Prompt
from moe_lab.engine.sampling import Decoding, GenerationState, Sampler
from moe_lab.engine.scoring import ScoringRequest
from moe_lab.methods.c3po import method
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.engine import PathwayEngine
from moe_lab.methods.method import Method
from moe_lab.methods.references.reference_set import ReferenceSet
from moe_lab.models.memory import weight_bytes
from moe_lab.routing import GumbelTopK, find_routers
from moe_lab.tasks.workload import Workload
from tests.support.accelerator import DEVICE, memory, metered
from tests.support.ensembles import never
from tests.support.models import make_model

FAMILIES = ("olmoe", "mixtral", "qwen2_moe", "qwen3_moe")
KINDS = ("scoring", "generation", "tuning", "C3PO")
LARGEST_VOCABULARY = 262_144  # Gemma's


C3PO = C3POConfig(name="c3po", layers="last2", steps=2, k=3, core_experts=4)

Ids = tuple[int, ...]


@dataclass
class Case:
    """A setting and its requests."""

    kind: str
    sequences: int | None
    """`batch_size`."""
    new_tokens: int
    do_sample: bool
    shape: Ensemble
    """Without a routing."""
    model_config: Any
    requests: Asked

    def ensemble(self, model: Any, temperature: float = 0.5) -> Ensemble:
        if self.shape.n == 1:
            return self.shape
        temperatures = [temperature] * len(find_routers(model))
        return replace(self.shape, routing=GumbelTopK(temperatures, seed=0))

    def held(self, model: Any) -> tuple[float, float]:
        """What the method of this kind plans to hold: (slots, rows of logits)."""
        method_class: Any = method.C3PO if self.kind == "C3PO" else Method
        stand_in = SimpleNamespace(config=C3PO, planned_ensemble=lambda: self.shape)
        workload = Workload(len(self.requests.scored), ((1.0, self.requests),))
        return method_class.held(stand_in, workload, loaded(model).facts)

    def run(self, model: Any) -> None:
        """All requests, all steps, two trials of a tuning."""
        budget = pass_budget(model, self.sequences)
        if self.kind == "C3PO":
            requests = self.scoring_requests()
            references = references_for(requests)
            layers = layers_of(model)
            engine: Any = PathwayEngine(loaded(model), C3PO, layers, references, budget)
            engine.score(requests, ignore_scores)
            return

        is_tuning = self.kind == "tuning"
        engine = KVEngine(EnsembleForward(model, self.ensemble(model)), budget, is_tuning)
        if is_tuning:
            without_noise = self.ensemble(model, temperature=0.0)
            engine.set_ensemble(replace(without_noise, sweep=ScaleSweep()))
            engine.score(self.scoring_requests(), ignore_scores)
            engine.set_ensemble(self.ensemble(model))
        if self.requests.scored:
            engine.score(self.scoring_requests(), ignore_scores)
        for prompts in self.requests.generated.values():
            self.generate(engine, model, list(prompts.values()))

    def scoring_requests(self) -> list[ScoringRequest]:
        requests = []
        for number, (prompt, answers) in enumerate(self.requests.scored.items()):
            requests.append(ScoringRequest(prompt, list(answers), number, "", [""]))
        return requests

    def generate(self, engine: KVEngine, model: Any, prompts: list[Prompt]) -> None:
        states = []
        for number, prompt in enumerate(prompts):
            states.append(GenerationState(number, prompt.ids, number))
        sampler = Sampler(model, GenerationConfig(do_sample=self.do_sample), 0)
        decoding = Decoding(sampler, never, self.new_tokens)
        engine.generate(states, decoding, lambda state: None)


def ignore_scores(index: int, scores: Any) -> None:
    pass


# A random case


def drawn_case(number: int) -> Case:
    """The kinds take turns; everything else is random."""
    rng = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    sequences = rng.choice([None, 1, 8])
    new_tokens = rng.choice([1, 6, 12])
    do_sample = rng.random() < 0.3
    shape = drawn_ensemble(rng)
    model_config = drawn_model(rng)
    prompts = drawn_prompts(rng)
    if kind == "generation":
        requests = generations(prompts, new_tokens, do_sample)
    else:
        requests = questions(rng, prompts)
    return Case(kind, sequences, new_tokens, do_sample, shape, model_config, requests)


def drawn_ensemble(rng: random.Random) -> Ensemble:
    n = rng.choice([1, 2, 8, 16])
    cache = rng.choice(["clean", "standard", "none"])
    prefill = rng.choice(["noisy", "clean"])
    if n == 1:
        cache = "clean"
    return Ensemble(n, cache=cache, prefill=prefill)


def drawn_model(rng: random.Random) -> Any:
    """A small model's configuration: 512 tokens to Gemma's vocabulary, and no end of text."""
    vocabulary = int(LARGEST_VOCABULARY ** rng.uniform(0.5, 1))
    model = make_model(rng.choice(FAMILIES), vocab_size=512, num_hidden_layers=3)
    config = deepcopy(model.config)
    config.vocab_size = vocabulary
    config.eos_token_id = None
    return config


def drawn_prompts(rng: random.Random) -> list[Ids]:
    """Some begin alike."""
    longest = rng.choice([20, 100, 200])
    count = rng.choice([1, 3, 6])
    beginning = drawn_ids(rng, longest)
    prompts = []
    for _ in range(count):
        if rng.random() < 0.5:
            prompts.append(beginning + drawn_ids(rng, longest))
        else:
            prompts.append(drawn_ids(rng, longest))
    return prompts


def drawn_ids(rng: random.Random, longest: int) -> Ids:
    length = rng.randrange(1, longest)
    return tuple(rng.randrange(512) for _ in range(length))


def generations(prompts: list[Ids], new_tokens: int, do_sample: bool) -> Asked:
    requests = Asked()
    settings = repr([("do_sample", do_sample)])
    requests.generated[settings] = {str(ids): Prompt(ids, (new_tokens,)) for ids in prompts}
    return requests


def questions(rng: random.Random, prompts: list[Ids]) -> Asked:
    """One or four answers to each prompt."""
    requests = Asked()
    for prompt in prompts:
        count = rng.choice([1, 4])
        requests.scored[prompt] = dict.fromkeys(drawn_ids(rng, 8) for _ in range(count))
    return requests


# What the engines are given


def layers_of(model: Any) -> list[int]:
    """The last two MoE layers."""
    layers = list(range(len(find_routers(model))))
    return layers[-2:]


def loaded(model: Any) -> Any:
    """What `load_model` returns, as far as it is read here."""
    experts_key = "num_local_experts" if model.config.model_type == "mixtral" else "num_experts"
    facts = SimpleNamespace(
        top_k=2,
        moe_layers=len(find_routers(model)),
        experts=getattr(model.config, experts_key),
        max_length=512,
    )
    return SimpleNamespace(model=model, facts=facts, device=model.device)


class GivenReferences(ReferenceSet):
    """Question n has the n-th unit vector as its embedding."""

    def embed(self, texts: list[str], model: Any) -> torch.Tensor:
        references, dimensions = self.embedding_RX.shape
        return torch.eye(dimensions - references, dimensions)


def references_for(requests: list[ScoringRequest]) -> ReferenceSet:
    """k references for each question, as long as the question.

    They are nearer to it than to other questions.
    """
    rng = random.Random(0)
    Q = len(requests)
    R = Q * C3PO.k
    embedding_RX = torch.zeros(R, Q + R)
    prompts = []
    answers = []
    for reference in range(R):
        question = reference // C3PO.k
        embedding_RX[reference, question] = 0.8
        embedding_RX[reference, Q + reference] = 0.6
        request = requests[question]
        prompts.append([rng.randrange(512) for _ in request.context])
        answers.append(list(max(request.continuations, key=len)))
    texts = [""] * R
    pathways = torch.full((R, 1, 4, 4), 0.25)
    return GivenReferences(
        None, texts, texts, prompts, answers, pathways, embedding_RX, {}, how="given"
    )


@pytest.mark.parametrize("number", range(12))
def test_a_device_of_the_planned_size_suffices(number):
    case = drawn_case(number)
    meta = meta_model(case.model_config, torch.float32)
    planned = planned_memory(meta, *case.held(meta))
    model = AutoModelForCausalLM.from_config(case.model_config, dtype=torch.float32)
    model = model.eval().to(DEVICE)
    model.set_experts_implementation("grouped_mm")
    with metered() as device:
        bytes_of_others = device.live - weight_bytes(meta)
        with memory(planned + bytes_of_others):
            case.run(model)
        peak = device.peak - bytes_of_others
    assert peak <= planned
