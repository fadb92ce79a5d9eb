"""A device of the planned size suffices for random settings, on the stand-in for a GPU that counts its bytes.

`tests/runs/planning/test_plan.py` runs this file in a process of its own. Broken by what a run holds and the plan leaves out.
"""

import random
from copy import deepcopy
from dataclasses import replace
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
from tests.support.models import make_model

FAMILIES = ("olmoe", "mixtral", "qwen2_moe", "qwen3_moe")
KINDS = ("scoring", "generation", "tuning", "C3PO")
LARGEST_VOCABULARY = 262_144  # Gemma's


class Case:
    """A drawn setting and its requests."""

    def __init__(self, number: int):
        rng = random.Random(number)
        self.kind = KINDS[number % len(KINDS)]
        self.sequences = rng.choice([None, 1, 8])
        self.new, self.sampled = rng.choice([1, 6, 12]), rng.random() < 0.3
        n = rng.choice([1, 2, 8, 16])
        cache, prefill = rng.choice(["clean", "standard", "none"]), rng.choice(["noisy", "clean"])
        self.shape = Ensemble(n, cache=cache if n > 1 else "clean", prefill=prefill)
        vocabulary = int(LARGEST_VOCABULARY ** rng.uniform(0.5, 1))
        self.config = deepcopy(
            make_model(rng.choice(FAMILIES), vocab_size=512, num_hidden_layers=3).config
        )
        self.config.vocab_size, self.config.eos_token_id = vocabulary, None

        longest, count = rng.choice([20, 100, 200]), rng.choice([1, 3, 6])
        shared = _ids(rng, longest)
        prompts = [
            (shared if rng.random() < 0.5 else ()) + _ids(rng, longest) for _ in range(count)
        ]
        self.asked = Asked()
        if self.kind == "generation":
            key = repr([("do_sample", self.sampled)])
            self.asked.generated[key] = {str(ids): Prompt(ids, (self.new,)) for ids in prompts}
        for prompt in [] if self.kind == "generation" else prompts:
            self.asked.scored[prompt] = dict.fromkeys(
                _ids(rng, 8) for _ in range(rng.choice([1, 4]))
            )

    def ensemble(self, model: Any, temperature: float = 0.5) -> Ensemble:
        layers = len(find_routers(model))
        return (
            replace(self.shape, routing=GumbelTopK([temperature] * layers, seed=0))
            if self.shape.n > 1
            else self.shape
        )

    def held(self, model: Any) -> tuple[float, float]:
        """As the methods of these kinds have it."""
        given = SimpleNamespace(config=C3PO, planned_ensemble=lambda: self.shape)
        kind: Any = method.C3PO if self.kind == "C3PO" else Method
        workload = Workload(len(self.asked.scored), ((1.0, self.asked),))
        return kind.held(given, workload, loaded(model).facts)

    def on_device(self, model: Any) -> None:
        """What runs: all requests, all steps, two trials."""
        budget = pass_budget(model, self.sequences)
        scored = enumerate(self.asked.scored.items())
        requests = [
            ScoringRequest(prompt, list(answers), i, "", [""]) for i, (prompt, answers) in scored
        ]
        if self.kind == "C3PO":
            references = references_for(requests)
            engine: Any = PathwayEngine(loaded(model), C3PO, layers_of(model), references, budget)
            engine.score(requests, lambda index, scores: None)
            return
        engine = KVEngine(
            EnsembleForward(model, self.ensemble(model)), budget, self.kind == "tuning"
        )
        if self.kind == "tuning":
            engine.set_ensemble(replace(self.ensemble(model, 0.0), sweep=ScaleSweep()))
            engine.score(requests, lambda index, scores: None)
            engine.set_ensemble(self.ensemble(model))
        if requests:
            engine.score(requests, lambda index, scores: None)
        for prompts in self.asked.generated.values():
            sampler = Sampler(model, GenerationConfig(do_sample=self.sampled), 0)
            states = [
                GenerationState(number, prompt.ids, number)
                for number, prompt in enumerate(prompts.values())
            ]
            engine.generate(
                states, Decoding(sampler, lambda generated: False, self.new), lambda state: None
            )


C3PO = C3POConfig(name="c3po", layers="last2", steps=2, k=3, core_experts=4)


def _ids(rng: random.Random, longest: int) -> tuple[int, ...]:
    return tuple(rng.randrange(512) for _ in range(rng.randrange(1, longest)))


def layers_of(model: Any) -> list[int]:
    """The last two MoE layers."""
    return list(range(len(find_routers(model))))[-2:]


def loaded(model: Any) -> Any:
    routers = find_routers(model)
    name = "num_local_experts" if model.config.model_type == "mixtral" else "num_experts"
    experts = getattr(model.config, name)
    facts = SimpleNamespace(top_k=2, moe_layers=len(routers), experts=experts, max_length=512)
    return SimpleNamespace(model=model, facts=facts, device=model.device)


def references_for(requests: list[ScoringRequest]) -> ReferenceSet:
    """k references for each question, as long as the question, which are nearer to it than to other questions."""
    rng, Q, R = random.Random(0), len(requests), len(requests) * C3PO.k
    of_question = torch.arange(R) // C3PO.k
    embedding_RX = torch.zeros(R, Q + R)
    embedding_RX[torch.arange(R), of_question] = 0.8
    embedding_RX[torch.arange(R), Q + torch.arange(R)] = 0.6

    class Given(ReferenceSet):
        def embed(self, texts: list[str], model: Any) -> torch.Tensor:
            return torch.eye(Q, Q + R)

    prompts = [[rng.randrange(512) for _ in requests[int(q)].context] for q in of_question]
    golds = [list(max(requests[int(q)].continuations, key=len)) for q in of_question]
    pathways = torch.full((R, 1, 4, 4), 0.25)
    return Given(None, [""] * R, [""] * R, prompts, golds, pathways, embedding_RX, {}, how="given")


@pytest.mark.parametrize("number", range(12))
def test_a_device_of_the_planned_size_suffices(number):
    case = Case(number)
    meta = meta_model(case.config, torch.float32)
    planned = planned_memory(meta, *case.held(meta))
    model = AutoModelForCausalLM.from_config(case.config, dtype=torch.float32).eval().to(DEVICE)
    model.set_experts_implementation("grouped_mm")
    with metered() as device:
        others = device.live - weight_bytes(meta)
        with memory(planned + others):
            case.on_device(model)
        peak = device.peak - others
    assert peak <= planned
