"""Planned tokens are those that the engine counts.

Broken by a cache, a prefill, a shared beginning, a branch of the answers, a repeat, a window
or an early end that the plan does not know.
"""

from typing import Any

import pytest

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.hf import Request, encoder_of
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.planned import Asked, Prompt, planned_tokens
from moe_lab.methods import get_method
from moe_lab.routing import GumbelTopK
from moe_lab.tasks.workload import Workload
from tests.support.ensembles import answered
from tests.support.models import make_model, make_tokenizer
from tests.support.runs import facts

MAX_LENGTH = 128
ENSEMBLES: dict[str, dict[str, Any]] = {
    "base": {},
    "clean": {"n": 3},
    "standard": {"n": 3, "cache": "standard"},
    "clean prefill": {"n": 3, "cache": "standard", "prefill": "clean"},
    "none": {"n": 3, "cache": "none"},
    "no cache, clean prefill": {"n": 3, "cache": "none", "prefill": "clean"},
}
SHARED = "What the questions have in common is read once: "
TEXTS = [("A text of two windows. " * 8,), ("A short text",)]
GENERATE = {"until": list("abcdefghijklmnopqrstuvwxyz"), "max_gen_toks": 7, "do_sample": False}
PROMPTS = [
    (f"{SHARED}0", GENERATE),
    (f"{SHARED}1", GENERATE),
    (f"{SHARED}2", GENERATE),
    (f"{SHARED}3", GENERATE),
    ("Alone:", GENERATE),
]


def questions() -> list[tuple[str, str]]:
    """Five questions with three answers each, and two questions that share nothing.

    Two of three answers begin alike.
    """
    pairs = []
    for number in range(5):
        for answer in (" yes", " yesterday", " no"):
            pairs.append((f"{SHARED}{number}?", answer))
    pairs.append(("Alone:", " yes"))
    pairs.append(("", "Nothing before it"))
    return pairs


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("olmoe")


TOKENIZER = make_tokenizer()


def lm_of(model: Any, name: str) -> EngineLM:
    keys = dict(ENSEMBLES[name])
    if keys:
        keys["routing"] = GumbelTopK([0.5] * 4, 0)
    return EngineLM(
        model, TOKENIZER, ensemble=Ensemble(**keys), max_length=MAX_LENGTH, progress=False
    )


def plan_of(model: Any, kind: str, requests: list[tuple], repeats: int = 1) -> Asked:
    encoder = encoder_of(model.config, TOKENIZER, MAX_LENGTH, None)
    plan = Asked()
    for request in requests:
        plan.read(encoder, kind, request, repeats)
    return plan


def assert_planned_tokens_are_counted(
    model: Any, kind: str, requests: list[tuple], name: str
) -> None:
    lm = lm_of(model, name)
    answered(lm, kind, requests)
    planned = planned_tokens(plan_of(model, kind, requests), Ensemble(**ENSEMBLES[name]))
    assert planned == lm.cost["tokens_in"]


@pytest.mark.parametrize("name", ENSEMBLES)
def test_planned_tokens_of_questions_are_those_that_are_counted(model, name):
    assert_planned_tokens_are_counted(model, "loglikelihood", questions(), name)


@pytest.mark.parametrize("name", ["base", "clean"])  # a text has no prompt
def test_planned_tokens_of_texts_are_those_that_are_counted(model, name):
    assert_planned_tokens_are_counted(model, "loglikelihood_rolling", TEXTS, name)


def lengths_of_answers(lm: EngineLM) -> list[int]:
    """New tokens of each of PROMPTS, asked one by one."""
    lengths = []
    for prompt in PROMPTS:
        tokens_before = lm.cost["tokens_out"]
        answered(lm, "generate_until", [prompt])
        lengths.append(lm.cost["tokens_out"] - tokens_before)
    return lengths


@pytest.mark.parametrize("name", ENSEMBLES)
def test_planned_tokens_of_generations_are_those_that_are_counted(model, name):
    """Each prompt is asked alone first, which gives the length of its answer."""
    lengths = lengths_of_answers(lm_of(model, name))
    assert len(set(lengths)) > 1
    lm = lm_of(model, name)
    answered(lm, "generate_until", PROMPTS)
    ensemble = Ensemble(**ENSEMBLES[name])
    plan = plan_of(model, "generate_until", PROMPTS)
    upper_bound = planned_tokens(plan, ensemble)

    for prompts in plan.generated.values():
        for prompt_text, prompt in list(prompts.items()):
            prompts[prompt_text] = Prompt(prompt.ids, (lengths.pop(0),))

    assert planned_tokens(plan, ensemble) == lm.cost["tokens_in"]
    assert lm.cost["tokens_in"] <= upper_bound, "answers that are as long as they may be"


def test_answers_of_one_prompt_are_read_for_each(model):
    prompt = ("Twice:", GENERATE | {"do_sample": True, "temperature": 1.0, "until": []})
    lm = lm_of(model, "clean")
    answered(lm, "generate_until", [Request(prompt, 0), Request(prompt, 1)])
    plan = plan_of(model, "generate_until", [prompt], repeats=2)
    assert plan.answers == 2
    assert plan.answer_tokens == 14
    assert lm.cost["tokens_out"] == 14
    assert planned_tokens(plan, lm.ensemble) == lm.cost["tokens_in"]


def test_the_longest_request_has_its_longest_answer():
    scored = {(1, 2, 3): {(4,): None, (5, 6): None}}
    rolling = {"a": [((1,), (2,) * 6)]}
    prompts = {"a": Prompt((1, 2), (3, 9)), "b": Prompt((1,) * 4, (1,))}
    assert Asked().longest == 0
    assert Asked(scored).longest == 3 + 2
    assert Asked(scored, rolling).longest == 1 + 6
    assert Asked(scored, generated={"": prompts}).longest == 2 + 9


def test_c3po_holds_its_questions_and_their_neighbours_in_the_changed_layers():
    """32 questions of 10 tokens with 3 neighbours each, from the fifth of eight layers on.

    Each has four answers of two tokens.
    """
    c3po = get_method("c3po")
    method = c3po(c3po.Config(name="c3po", layers="last4", k=3))
    four_answers = {(answer, 0): None for answer in range(4)}
    scored = {(question,) * 8: dict(four_answers) for question in range(5)}
    workload = Workload(5, ((1.0, Asked(scored)),))
    slots, rows = method.held(workload, facts(moe_layers=8))
    assert slots == 32 * (1 + 3) * 10 * 4 / 8
    assert rows == 32 * 4 * 2
