"""Prompts, questions and ensembles of the engine's tests, and what the engine answers to them.

`generated` has sequences that end at different steps, by every kind of ensemble whose steps can stay in place.
"""

import random

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


def answered(lm, kind, requests):
    """The answers of an LM to requests, or to the arguments of some."""
    found = {}
    requests = [each if isinstance(each, Request) else Request(each) for each in requests]
    lm.answer(kind, requests, found.__setitem__)
    return [found[i] for i in range(len(requests))]


def roe_answers(model):
    """RoE's answers of a loaded model to a few requests, by number."""
    ensemble = Ensemble(
        n=3, routing=GumbelTopK([0.5] * len(find_routers(model)), seed=1), first_noisy=0
    )
    lm = EngineLM(model, make_tokenizer(), ensemble=ensemble, progress=False)
    options = {"until": [], "max_gen_toks": 2, "do_sample": False}
    pairs = [("ab", "cd"), ("what lies before", " or it is longer")]
    found = [value for value, _ in answered(lm, "loglikelihood", pairs)]
    found += answered(lm, "generate_until", [("a prompt that is longer", options)])
    return dict(enumerate(found))


WORDS = "the cat sat on a mat and ran far away from big dogs in new york".split()


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def prompts_for(rng, count):
    """Prompts of many lengths, half of them with a common beginning."""
    shared = [rng.randrange(256) for _ in range(20)]
    return [
        (shared if i % 2 else []) + [rng.randrange(256) for _ in range(rng.randrange(1, 25))]
        for i in range(count)
    ]


def engine_of(model, ensemble=None, budget=None, two_phase=False):
    """The engine that `EngineLM` runs an ensemble with; it scores in whole passes unless `two_phase`."""
    ensemble = ensemble or Ensemble()
    if not runs_on_kv_cache(model):
        return RecurrentEngine(RecurrentForward(model, ensemble))
    engine = KVEngine(EnsembleForward(model, ensemble), budget or Budget(4000))
    engine.two_phase = engine.two_phase if two_phase else None
    return engine


def answers_of(
    model,
    prompts,
    budget,
    steps,
    ensemble=None,
    options=None,
    stop=(),
    tokenizer=None,
    repeats=1,
    seed=0,
):
    answers = [
        GenerationState(i, prompt, document_key(prompt), repeat)
        for i, prompt in enumerate(prompts)
        for repeat in range(repeats)
    ]
    config = generation_config(model, options or {})
    ended = []
    finished = (
        StoppingCriteria(tokenizer, list(stop), config) if tokenizer else lambda generated: False
    )
    decoding = Decoding(Sampler(model, config, seed), finished, steps)
    engine_of(model, ensemble, budget).generate(answers, decoding, ended.append)
    assert sorted(map(id, ended)) == sorted(map(id, answers))
    return [answer.generated for answer in answers]


def greedy_by_transformers(model, prompt, steps):
    with torch.no_grad():
        options = {"max_new_tokens": steps, "do_sample": False, "eos_token_id": None}
        output = model.generate(torch.tensor([prompt]), **options)
    return output[0, len(prompt) :].tolist()


def questions_for(rng, count, choices=3, longest=25):
    """Contexts of many lengths, every other one with a common beginning; continuations that part at every depth."""
    shared = [rng.randrange(256) for _ in range(20)]
    questions = []
    for i in range(count):
        context = (shared if i % 2 else []) + [
            rng.randrange(256) for _ in range(rng.randrange(1, longest))
        ]
        continuations = [
            [rng.randrange(256) for _ in range(rng.randrange(1, 5))] for _ in range(choices)
        ]
        continuations += [[continuations[0][0], 5, last] for last in (6, 7)]
        questions.append(ScoringRequest(context, continuations, document_key(context)))
    return questions


def scores_of(model, questions, budget=None, ensemble=None, two_phase=False):
    """(scores by question, the engine)"""
    found = {}
    engine = engine_of(model, ensemble, budget, two_phase)
    engine.score(questions, found.__setitem__)
    assert sorted(found) == list(range(len(questions)))
    return found, engine


def plain(model, question, continuation):
    ids = torch.tensor([[*question.context, *continuation]])
    with torch.no_grad():
        log_probs = model(ids).logits[0].log_softmax(-1)[len(question.context) - 1 : -1]
    target = torch.tensor(continuation)
    return float(log_probs.gather(1, target[:, None]).sum()), bool(
        (log_probs.argmax(-1) == target).all()
    )


HISTORIES = [("clean", "noisy"), ("standard", "noisy"), ("none", "clean")]
HISTORIES += [("standard", "clean"), ("none", "noisy")]
"""(cache, prefill). The first three have each value."""
N, SEED = 4, 3


def temperatures_for(model):
    return [0.0] + [0.7] * (len(find_routers(model)) - 2) + [0.3]


def ensemble_for(model, history, perturbed=False, temperatures=None, first_noisy=1, n=N):
    routing = GumbelTopK(temperatures or temperatures_for(model), SEED, perturbed)
    return Ensemble(n, routing, first_noisy, cache=history[0], prefill=history[1])


def assert_scores(found, expected, tokens=1):
    for i in range(len(expected)):
        values = [value for value, _ in expected[i]]
        assert [value for value, _ in found[i]] == rounding.approx(values, tokens)
        assert [greedy for _, greedy in found[i]] == [greedy for _, greedy in expected[i]]


ENDS = (12, 12, 3, 5, 12, 4, 6, 3, 12)
"""New tokens of each sequence of a batch. Some end early and stay as they are, until half of them have ended and the batch
is made smaller."""
ENSEMBLES = ("base", "roe", "roe, standard cache", "scmoe")


def ensembles(model):
    temperatures = [0.0] + [0.7] * (len(find_routers(model)) - 1)
    roe = {"n": 4, "routing": GumbelTopK(temperatures, 0), "first_noisy": 1}
    weak = OtherExperts(of_rank(3), repeatable=True)
    return {
        "base": Ensemble(),
        "roe": Ensemble(**roe),
        "roe, standard cache": Ensemble(
            **roe | {"routing": GumbelTopK(temperatures, 1)}, cache="standard"
        ),
        "scmoe": Ensemble(2, weak, contrast=Contrast(0.5, 0.1)),
    }


def generated(model, ensemble):
    """(tokens, scores of each step, tokens put through the model, counts of decisions)."""
    forward, scores = EnsembleForward(model, ensemble), []
    prompts = enumerate(prompts_for(random.Random(2), len(ENDS)))
    states = [GenerationState(i, prompt, document_key(prompt)) for i, prompt in prompts]

    def choose(scores_AV, states):
        scores.append(scores_AV.clone())
        return scores_AV.argmax(dim=-1).tolist()

    decoding = Decoding(choose, lambda state: len(state.generated) == ENDS[state.index], max(ENDS))
    KVEngine(forward, Budget(4000)).generate(states, decoding, lambda state: None)
    decisions = ensemble.routing and ensemble.routing.counts()
    return [state.generated for state in states], scores, forward.tokens_in, decisions
