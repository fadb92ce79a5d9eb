"""The answer in a reply with reasoning. Broken by: reasoning that is taken as the answer, a stop word that ends the
reasoning, special tokens or another message in the answer, lm-eval's own code for models without a KV cache.
"""

import logging

import pytest

from moe_lab.engine.hf import THINK_END
from moe_lab.engine.lm import EngineLM
from tests.support.ensembles import answered
from tests.support.harmony import FINAL, OPEN, answer_with, harmony_model, harmony_tokenizer, reply, thought
from tests.support.tiers import by_family


def answer(lm: EngineLM, **options: object) -> str:
    settings = {"until": ["Question:"], "max_gen_toks": 200, THINK_END: FINAL, **options}
    return answered(lm, "generate_until", [(f"2 + 2{OPEN}", settings)])[0]


@pytest.fixture(scope="module")
def lm() -> EngineLM:
    return EngineLM(harmony_model(), harmony_tokenizer(), progress=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (reply("2 + 2\n\nQuestion: is it 5?", " 4\n\nQuestion: and then?"), "4\n\n"),
        (f"{thought('so')}{OPEN}{FINAL}5{thought('no')}{OPEN}{FINAL}4<|return|>", "4"),  # the last one counts
        (f"{FINAL}4<|end|>{OPEN}<|channel|>commentary<|message|>done<|return|>", "4"),
        (f"{thought('so')}{OPEN}{FINAL}<|return|>", ""),
    ],
)
def test_the_answer_is_the_text_of_the_final_channel(lm, monkeypatch, text, expected):
    answer_with(monkeypatch, text)
    assert answer(lm) == expected
    assert lm.cost.get("cut_reasoning", 0) == 0


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (reply("the answer is 4", "4"), FINAL),
        (f"{thought('4')}<|return|>", FINAL),
        ("so it is 4</think>4<|return|>", "</think>"),
    ],
)
def test_a_reply_that_ends_in_the_reasoning_has_an_empty_answer(monkeypatch, caplog, text, end):
    lm = EngineLM(harmony_model(), harmony_tokenizer(), progress=False)
    answer_with(monkeypatch, text)
    with caplog.at_level(logging.WARNING, logger="moe_lab"):
        assert answer(lm, max_gen_toks=15, **{THINK_END: end}) == ""
    assert lm.cost["cut_reasoning"] == 1
    assert f"1 of 1 replies end before {end}, within 15 new tokens" in caplog.text


def test_without_it_special_tokens_are_dropped_and_stop_words_end_the_reply(lm, monkeypatch):
    answer_with(monkeypatch, reply("2 + 2\n\nQuestion: is it 5?", "4"))
    request = (OPEN, {"until": ["Question:"], "max_gen_toks": 200})
    assert answered(lm, "generate_until", [request]) == ["analysis2 + 2\n\n"]


@pytest.mark.parametrize("family", by_family(["jamba", "qwen3_next"]))
def test_models_without_a_kv_cache_reason_in_our_engine(monkeypatch, family):
    lm = EngineLM(harmony_model(family), harmony_tokenizer(), progress=False)
    assert lm.engine is None
    answer_with(monkeypatch, reply("2 + 2", "4"))
    assert answer(lm) == "4"
