"""Sampled answers of models that only lm-eval's `hf` runs depend on their prompts, not on when or beside what they are
drawn: `method=base` has no seed, and an interrupted run continues."""

from __future__ import annotations

import torch

from moe_lab.engine.lm import EngineLM, Request
from tests.support.models import make_tokenizer, small_model

OPTIONS = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 1.0}


def answers(prompts, repeat=0):
    lm = EngineLM(small_model("qwen3_next"), make_tokenizer(), batch_size=4, progress=False)
    assert lm.engine is None
    found = {}
    lm.answer("generate_until", [Request((prompt, OPTIONS), repeat) for prompt in prompts], found.__setitem__)
    return dict(zip(prompts, (found[i] for i in range(len(prompts))), strict=True))


def test_answers_do_not_depend_on_order_company_or_what_was_drawn_before():
    first = answers(["one prompt", "another one", "a third"])
    torch.rand(5)
    assert answers(["a third", "one prompt"]) == {key: first[key] for key in ("a third", "one prompt")}


def test_several_answers_to_a_prompt_differ():
    assert answers(["one prompt"]) != answers(["one prompt"], repeat=1)
