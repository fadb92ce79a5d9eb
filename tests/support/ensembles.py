"""Prompts, questions and ensembles of the engine's tests, and what the engine answers to them.

`generated` has sequences that end at different steps, by every kind of ensemble
whose steps can stay in place.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from moe_lab.engine.engine import KVEngine
from moe_lab.engine.forward.ensemble import Contrast, Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.recurrent import RecurrentEngine, RecurrentForward
from moe_lab.engine.sampling import (
    Decoding,
    GenerationState,
    Sampler,
    StoppingCriteria,
    generation_config,
)
from moe_lab.engine.scoring import Budget, ScoringRequest
from moe_lab.methods.scmoe import of_rank
from moe_lab.routing import GumbelTopK, document_key, find_routers
from moe_lab.routing.samples import OtherExperts
from tests.support import rounding
from tests.support.models import make_tokenizer

WORDS = "the cat sat on a mat and ran far away from big dogs in new york".split()
N = 4
SEED = 3
HISTORIES = [
    ("clean", "noisy"),
    ("standard", "noisy"),
    ("none", "clean"),
    ("standard", "clean"),
    ("none", "noisy"),
]
"""(cache, prefill). The first three have each value."""


# What is asked


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def random_ids(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(256) for _ in range(tokens)]


def prompts_for(rng: random.Random, count: int, longest: int = 25) -> list[list[int]]:
    """Prompts of 1 to `longest` - 1 tokens, every other one after a common beginning of 20."""
    beginning = random_ids(rng, 20)
    prompts = []
    for number in range(count):
        prompt = random_ids(rng, rng.randrange(1, longest))
        if number % 2:
            prompt = beginning + prompt
        prompts.append(prompt)
    return prompts


def questions_for(
    rng: random.Random, count: int, choices: int = 3, longest: int = 25
) -> list[ScoringRequest]:
    """Contexts of many lengths, every other one with a common beginning.

    The continuations are `choices` random ones, and two that share the first's first
    token and part at the third.
    """
    beginning = random_ids(rng, 20)
    questions = []
    for number in range(count):
        context = random_ids(rng, rng.randrange(1, longest))
        if number % 2:
            context = beginning + context
        continuations = []
        for _ in range(choices):
            continuations.append(random_ids(rng, rng.randrange(1, 5)))
        first_token = continuations[0][0]
        continuations.append([first_token, 5, 6])
        continuations.append([first_token, 5, 7])
        questions.append(ScoringRequest(context, continuations, document_key(context)))
    return questions


# Answers of an LM


def answered(lm: Any, kind: str, requests: list) -> list[Any]:
    """The answers of an LM to requests, or to the arguments of some."""
    lm_requests = []
    for request in requests:
        if not isinstance(request, Request):
            request = Request(request)
        lm_requests.append(request)
    answers: dict[int, Any] = {}
    lm.answer(kind, lm_requests, answers.__setitem__)
    return [answers[index] for index in range(len(lm_requests))]


def roe_answers(model: Any) -> dict[int, Any]:
    """RoE's answers of a loaded model to a few requests, by number."""
    temperatures = [0.5] * len(find_routers(model))
    ensemble = Ensemble(n=3, routing=GumbelTopK(temperatures, seed=1), first_noisy=0)
    lm = EngineLM(model, make_tokenizer(), ensemble=ensemble, progress=False)

    pairs = [("ab", "cd"), ("what lies before", " or it is longer")]
    log_likelihoods = [value for value, _ in answered(lm, "loglikelihood", pairs)]
    options = {"until": [], "max_gen_toks": 2, "do_sample": False}
    texts = answered(lm, "generate_until", [("a prompt that is longer", options)])
    return dict(enumerate(log_likelihoods + texts))


# Answers of an engine


def engine_of(
    model: Any,
    ensemble: Ensemble | None = None,
    budget: Budget | None = None,
    two_phase: bool = False,
) -> Any:
    """The engine that `EngineLM` runs an ensemble with. It scores in whole
    passes unless `two_phase`."""
    if ensemble is None:
        ensemble = Ensemble()
    if not runs_on_kv_cache(model):
        return RecurrentEngine(RecurrentForward(model, ensemble))
    if budget is None:
        budget = Budget(4000)
    engine = KVEngine(EnsembleForward(model, ensemble), budget)
    if not two_phase:
        engine.two_phase = None
    return engine


def answers_of(
    model: Any,
    prompts: list[list[int]],
    budget: Budget,
    steps: int,
    ensemble: Ensemble | None = None,
    options: dict[str, Any] | None = None,
    stop: Any = (),
    tokenizer: Any = None,
    repeats: int = 1,
    seed: int = 0,
) -> list[list[int]]:
    """The new tokens of each prompt, and of each repeat of it.

    Without a tokenizer nothing ends a sequence before `steps` tokens.
    """
    states = []
    for index, prompt in enumerate(prompts):
        for repeat in range(repeats):
            states.append(GenerationState(index, prompt, document_key(prompt), repeat))
    config = generation_config(model, options or {})
    is_finished: Callable[[GenerationState], bool] = never
    if tokenizer is not None:
        is_finished = StoppingCriteria(tokenizer, list(stop), config)
    decoding = Decoding(Sampler(model, config, seed), is_finished, steps)

    ended: list[GenerationState] = []
    engine_of(model, ensemble, budget).generate(states, decoding, ended.append)

    assert sorted(map(id, ended)) == sorted(map(id, states)), "each ends once"
    return [state.generated for state in states]


def never(state: GenerationState) -> bool:
    return False


def greedy_by_transformers(model: Any, prompt: list[int], steps: int) -> list[int]:
    with torch.no_grad():
        output = model.generate(
            torch.tensor([prompt]), max_new_tokens=steps, do_sample=False, eos_token_id=None
        )
    return output[0, len(prompt) :].tolist()


def scores_of(
    model: Any,
    questions: list[ScoringRequest],
    budget: Budget | None = None,
    ensemble: Ensemble | None = None,
    two_phase: bool = False,
) -> tuple[dict[int, Any], Any]:
    """(scores by question, the engine)"""
    scores: dict[int, Any] = {}
    engine = engine_of(model, ensemble, budget, two_phase)
    engine.score(questions, scores.__setitem__)
    assert sorted(scores) == list(range(len(questions)))
    return scores, engine


def plain(model: Any, question: ScoringRequest, continuation: list[int]) -> tuple[float, bool]:
    """A continuation's log-likelihood and whether it is greedy, by one pass of transformers."""
    ids = torch.tensor([[*question.context, *continuation]])
    with torch.no_grad():
        logits_TV = model(ids).logits[0]
    log_probs_CV = logits_TV.log_softmax(-1)[len(question.context) - 1 : -1]
    target_C = torch.tensor(continuation)
    log_likelihood = log_probs_CV.gather(1, target_C[:, None]).sum()
    is_greedy = (log_probs_CV.argmax(-1) == target_C).all()
    return float(log_likelihood), bool(is_greedy)


def assert_scores(scores: Any, expected: Any, tokens: int = 1) -> None:
    """Each question has the expected log-likelihoods up to rounding, and the
    same greedy continuations."""
    for question in range(len(expected)):
        assert_log_likelihoods(scores[question], expected[question], tokens)


def assert_log_likelihoods(
    answers: list[tuple[float, bool]], expected: list[tuple[float, bool]], tokens: int = 1
) -> None:
    """Pairs of lm-eval: equal to the rounding of so many tokens, and the same ones are greedy."""
    values = [value for value, _ in answers]
    expected_values = [value for value, _ in expected]
    assert values == rounding.approx(expected_values, tokens)

    greedy = [is_greedy for _, is_greedy in answers]
    expected_greedy = [is_greedy for _, is_greedy in expected]
    assert greedy == expected_greedy


# Ensembles


def temperatures_for(model: Any) -> list[float]:
    """By MoE layer: none in the first one, and a lower one in the last."""
    return [0.0] + [0.7] * (len(find_routers(model)) - 2) + [0.3]


def ensemble_for(
    model: Any,
    history: tuple[str, str],
    perturbed: bool = False,
    temperatures: list[float] | None = None,
    first_noisy: int = 1,
    n: int = N,
) -> Ensemble:
    if temperatures is None:
        temperatures = temperatures_for(model)
    cache, prefill = history
    routing = GumbelTopK(temperatures, SEED, perturbed)
    return Ensemble(n, routing, first_noisy, cache=cache, prefill=prefill)


ENSEMBLES = ("base", "roe", "roe, standard cache", "scmoe")


def ensembles(model: Any) -> dict[str, Ensemble]:
    """One of each kind whose steps can stay in place, by its name in `ENSEMBLES`."""
    temperatures = [0.0] + [0.7] * (len(find_routers(model)) - 1)
    weak = OtherExperts(of_rank(3), repeatable=True)
    return {
        "base": Ensemble(),
        "roe": Ensemble(4, GumbelTopK(temperatures, 0), first_noisy=1),
        "roe, standard cache": Ensemble(
            4, GumbelTopK(temperatures, 1), first_noisy=1, cache="standard"
        ),
        "scmoe": Ensemble(2, weak, contrast=Contrast(0.5, 0.1)),
    }


ENDS = (12, 12, 3, 5, 12, 4, 6, 3, 12)
"""New tokens of each sequence of a batch. Some end early and stay as they are, until half of them
have ended and the batch is made smaller."""


class Generated(NamedTuple):
    tokens: list[list[int]]
    """By sequence."""
    scores: list[torch.Tensor]
    """Of each step, [answers, vocabulary]."""
    tokens_in: int
    """Tokens put through the model."""
    decisions: Any
    """Counts of the routing's decisions; None without a routing."""


def generated(model: Any, ensemble: Ensemble) -> Generated:
    """Greedy answers to prompts, each of which ends after its number of `ENDS`."""
    states = []
    for index, prompt in enumerate(prompts_for(random.Random(2), len(ENDS))):
        states.append(GenerationState(index, prompt, document_key(prompt)))
    scores = []

    def choose(scores_AV: torch.Tensor, states: list[GenerationState]) -> list[int]:
        scores.append(scores_AV.clone())
        return scores_AV.argmax(dim=-1).tolist()

    def is_finished(state: GenerationState) -> bool:
        return len(state.generated) == ENDS[state.index]

    forward = EnsembleForward(model, ensemble)
    decoding = Decoding(choose, is_finished, max(ENDS))
    KVEngine(forward, Budget(4000)).generate(states, decoding, lambda state: None)

    decisions = None
    if ensemble.routing is not None:
        decisions = ensemble.routing.counts()
    return Generated([state.generated for state in states], scores, forward.tokens_in, decisions)
