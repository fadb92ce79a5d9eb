"""The planned tokens against those that the engine counts. Broken by a cache, a prefill, a shared beginning, a branch of the
answers, a repeat, a window or an early end that the plan does not know.
"""

from itertools import product
from typing import Any

import pytest

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.hf import encoder_of
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.planned import Asked, planned_tokens
from moe_lab.methods import get_method
from moe_lab.routing import GumbelTopK
from moe_lab.tasks.requests import Workload
from tests.support.models import make_model, make_tokenizer
from tests.support.runs import facts

SHARED = "What the questions have in common is read once: "
ENSEMBLES: dict[str, dict[str, Any]] = {
    "base": {},
    "clean": {"n": 3},
    "standard": {"n": 3, "cache": "standard"},
    "clean prefill": {"n": 3, "cache": "standard", "prefill": "clean"},
    "none": {"n": 3, "cache": "none"},
    "no cache, clean prefill": {"n": 3, "cache": "none", "prefill": "clean"},
}
GENERATE = {"until": list("abcdefghijklmnopqrstuvwxyz"), "max_gen_toks": 7, "do_sample": False}
ASKED: dict[str, list[tuple]] = {
    "loglikelihood": [
        (f"{SHARED}{number}?", f" {answer}") for number in range(5) for answer in ("yes", "yesterday", "no")
    ]
    + [("Alone:", " yes"), ("", "Nothing before it")],
    "loglikelihood_rolling": [("A text of two windows. " * 8,), ("A short text",)],
    "generate_until": [(f"{SHARED}{number}", GENERATE) for number in range(4)] + [("Alone:", GENERATE)],
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *product(("loglikelihood", "generate_until"), ENSEMBLES),
        ("loglikelihood_rolling", "base"),  # a text has no prompt
        ("loglikelihood_rolling", "clean"),
    ],
)
def test_planned_tokens_are_those_that_are_counted(kind, name):
    """Each prompt is asked alone first, which gives the length of its answer."""
    model, tokenizer = make_model("olmoe"), make_tokenizer()
    encoder, asked, lengths = encoder_of(model.config, tokenizer, 128, None), Asked(), []
    lm = _lm(model, tokenizer, name)
    for args in ASKED[kind]:
        asked.read(encoder, kind, args)
        if kind == "generate_until":
            before = lm.cost["tokens_out"]
            lm.answer(kind, [Request(args)], lambda *_: None)
            lengths.append(lm.cost["tokens_out"] - before)
    assert kind != "generate_until" or len(set(lengths)) > 1
    whole = _lm(model, tokenizer, name)
    whole.answer(kind, list(map(Request, ASKED[kind])), lambda *_: None)
    most = planned_tokens(asked, Ensemble(**ENSEMBLES[name]))
    for prompts in asked.generated.values():
        prompts |= {text: (prompt, (lengths.pop(0),)) for text, (prompt, _) in list(prompts.items())}
    planned = planned_tokens(asked, Ensemble(**ENSEMBLES[name]))
    assert planned == whole.cost["tokens_in"] <= most


def test_answers_of_one_prompt_are_read_for_each():
    model, tokenizer = make_model("olmoe"), make_tokenizer()
    sampled = GENERATE | {"do_sample": True, "temperature": 1.0, "until": []}
    lm = _lm(model, tokenizer, "clean")
    requests = [Request(("Twice:", sampled), repeat) for repeat in range(2)]
    lm.answer("generate_until", requests, lambda *_: None)
    asked = Asked()
    asked.read(encoder_of(model.config, tokenizer, 128, None), "generate_until", ("Twice:", sampled), 2)
    assert lm.cost["tokens_out"] == asked.answer_tokens == 14 and asked.answers == 2
    assert planned_tokens(asked, lm.ensemble) == lm.cost["tokens_in"]


def test_the_longest_request_has_its_longest_answer():
    scored = {(1, 2, 3): {(4,): None, (5, 6): None}}
    assert Asked(scored).longest == 5
    assert Asked(scored, {"a": [((1,), (2,) * 6)]}).longest == 7
    assert Asked(scored, generated={"": {"a": ((1, 2), (3, 9)), "b": ((1,) * 4, (1,))}}).longest == 11
    assert Asked().longest == 0


def test_c3po_holds_its_questions_and_their_neighbours_in_the_changed_layers():
    """32 questions of 10 tokens with 3 neighbours each, from the fifth of eight layers on; four answers of two tokens."""
    settings = get_method("c3po").Config(name="c3po", layers="last4", k=3)
    asked = Asked({(question,) * 8: {(answer, 0): None for answer in range(4)} for question in range(5)})
    held = get_method("c3po")(settings).held(Workload(5, ((1.0, asked),)), facts(moe_layers=8))
    assert held == (32 * (1 + 3) * 10 * 4 / 8, 32 * 4 * 2)


def _lm(model: Any, tokenizer: Any, name: str) -> EngineLM:
    keys = ENSEMBLES[name]
    routing = {"routing": GumbelTopK([0.5] * 4, 0)} if keys else {}
    return EngineLM(model, tokenizer, ensemble=Ensemble(**keys, **routing), max_length=128, progress=False)
