"""Passes that do not fit are halved, with the same answers; sizes follow from the free memory and the model's shape; planned
tokens are those that the engine counts.

Broken by a request that is answered twice or not at all after a halving, by a message for each pass, by an error that is
no lack of memory and is taken for one, by passes of noisy samples that batch_size=1 does not shrink; by a cache, a prefill,
a shared beginning, a branch of the answers, a repeat, a window or an early end that the plan does not know.
"""

import logging
import random
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moe_lab.engine import pass_size, two_phase
from moe_lab.engine.footprint import footprint_of, meta_model
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.kv_cache import token_bytes
from moe_lab.engine.hf import Request, encoder_of
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.planned import Asked, Prompt, planned_tokens
from moe_lab.engine.scoring import Budget
from moe_lab.methods import get_method
from moe_lab.models.memory import weight_bytes
from moe_lab.routing import GumbelTopK
from moe_lab.tasks.workload import Workload
from tests.support import rounding
from tests.support.ensembles import text
from tests.support.models import make_model, make_tokenizer, small_model
from tests.support.runs import facts


def requests(kind):
    rng = random.Random(1)
    texts = [text(rng, words) for words in (3, 12, 20, 5, 16)]
    if kind == "generate_until":
        return [Request((text, {"max_gen_toks": 4, "until": []})) for text in texts]
    return [Request((text, " and then")) for text in texts]


def ask(lm, kind):
    answers = {}

    def on_answer(index, answer):
        assert index not in answers, "answered twice"
        answers[index] = answer

    lm.answer(kind, requests(kind), on_answer)
    return [answers[index] for index in range(len(answers))]


@pytest.mark.parametrize("kind", ["loglikelihood", "generate_until"])
@pytest.mark.parametrize("cache", ["clean", "standard"])
def test_out_of_memory_halves_the_passes_and_goes_on(
    olmoe, tokenizer, monkeypatch, caplog, kind, cache
):
    ensemble = Ensemble(3, GumbelTopK([0.0, 1.0, 1.0, 1.0], seed=0), first_noisy=1, cache=cache)
    expected = ask(EngineLM(olmoe, tokenizer, ensemble=ensemble, progress=False), kind)
    passes = []

    def limited(module, args, kwargs):
        ids = kwargs.get("input_ids", kwargs.get("inputs_embeds"))
        passes.append(ids.shape[0] * ids.shape[1])
        if passes[-1] > 150:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(pass_size, "CPU_TOKENS", 400 if cache == "clean" else 1200)
    hooked = olmoe.register_forward_pre_hook(limited, with_kwargs=True)
    with caplog.at_level(logging.WARNING, "moe_lab"), hooked:
        lm = EngineLM(olmoe, tokenizer, ensemble=ensemble, progress=False)
        found = ask(lm, kind)
        said = [record.message for record in caplog.records if "Out of memory" in record.message]
        again = ask(lm, kind)
    if kind == "generate_until":
        assert found == again == expected
    else:
        for one, other in zip(found, expected, strict=True):
            assert one[0] == rounding.approx(other[0]) and one[1] == other[1]
    failed = sum(size > 150 for size in passes)
    assert failed == len(said) >= 1, "once for each halving, and the smaller size is kept"
    assert f"at most {lm.budget.tokens} tokens" in said[-1]


def test_other_errors_and_the_smallest_pass_are_raised(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer, progress=False)
    budget = replace(lm.budget)
    for message in ("shapes do not fit", "CUDA out of memory."):

        def fail(module, args, message=message):
            raise RuntimeError(message)

        with olmoe.register_forward_pre_hook(fail), pytest.raises(RuntimeError, match=message):
            lm.answer("loglikelihood", requests("loglikelihood"), lambda index, answer: None)
        if message == "shapes do not fit":
            assert lm.budget == budget
    assert (lm.budget.tokens, lm.budget.sequences) == (pass_size.LEAST_TOKENS, 1)


def test_batch_size_1_shrinks_noisy_passes():
    """A text of 1,000 tokens had all of its samples in passes of 16,384."""
    text = SimpleNamespace(kv_cache=SimpleNamespace(length=1000), position_M=torch.zeros(1000))
    widest = [
        max(
            sum(len(chunk.at_C) for chunk in chunks) * 7
            for chunks in two_phase.passes([text], 7, budget)
        )
        for budget in (Budget(16384), Budget(16384, 1))
    ]
    assert widest[0] == 7000 and widest[1] <= two_phase.CHUNK_SAMPLES


@pytest.mark.parametrize("family", ["olmoe", "qwen2_moe"])
def test_the_footprint_of_a_token(family):
    """Against hand-counted bounds: the chosen experts' inputs and outputs are alive at once, and not those of all
    experts; the keys and values are those of the cache."""
    model = make_model(family)
    footprint = footprint_of(model)
    assert footprint.slot == token_bytes(model)
    hidden, k, inner = 48 * 4, 2, 24 * 4
    chosen = k * (hidden + 2 * inner)
    assert chosen < footprint.token < 6 * (chosen + hidden)
    assert footprint.kept > 4 * footprint.token / 2, "four layers keep what gradients need"
    model.set_attn_implementation("eager")
    assert footprint_of(model).token > 5 * footprint.token, "the attention of all pairs of tokens"


def test_a_family_whose_code_reads_values_is_metered_by_its_own_weights():
    model = small_model("jetmoe")
    assert footprint_of(model).model is model and footprint_of(model).token > 0


def test_the_planned_device_has_room_for_a_pass_and_for_what_is_held():
    """After 20,000 slots the keys and values of a sequence take more than the pass, and rows of logits as well."""
    model = meta_model(make_model("olmoe").config, torch.float32)
    token, slot, vocabulary = footprint_of(model).token, token_bytes(model), model.config.vocab_size
    small = pass_size.planned_memory(model, 10, 1)
    assert small == weight_bytes(model) + int(2048 * token / 0.2)
    for slots, rows in ((20_000, 3), (10, 20_000)):
        planned = pass_size.planned_memory(model, slots, rows)
        assert (
            planned
            == weight_bytes(model) + 2 * (slots * slot + rows * vocabulary * (4 + 12))
            > small
        )


def test_the_size_follows_from_the_free_memory(olmoe, monkeypatch):
    accelerator = meta_model(olmoe.config, torch.float32)
    sizes = {}
    for free in (10**6, 10**7, 10**12):
        monkeypatch.setattr(pass_size, "free_memory", lambda device, free=free: free)
        sizes[free] = pass_size.pass_budget(accelerator)
        pass_size.bound_gradients(accelerator, sizes[free])
    token = footprint_of(olmoe).token
    assert sizes[10**7].tokens == int(pass_size.PASS_SHARE * 10**7) // token
    assert sizes[10**12].tokens == pass_size.MOST_TOKENS
    assert sizes[10**6].tokens < sizes[10**7].tokens
    assert sizes[10**7].slots == 10**7 // 2 // token_bytes(olmoe)
    assert (
        sizes[10**7].gradient_tokens
        == int(pass_size.PASS_SHARE * 10**7) // footprint_of(olmoe).kept
    )
    assert sizes[10**7].row == pytest.approx(2 * 4 * olmoe.config.vocab_size / token)


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
        (f"{SHARED}{number}?", f" {answer}")
        for number in range(5)
        for answer in ("yes", "yesterday", "no")
    ]
    + [("Alone:", " yes"), ("", "Nothing before it")],
    "loglikelihood_rolling": [("A text of two windows. " * 8,), ("A short text",)],
    "generate_until": [(f"{SHARED}{number}", GENERATE) for number in range(4)]
    + [("Alone:", GENERATE)],
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
        for asked_text, prompt in list(prompts.items()):
            prompts[asked_text] = Prompt(prompt.ids, (lengths.pop(0),))
    planned = planned_tokens(asked, Ensemble(**ENSEMBLES[name]))
    assert planned == whole.cost["tokens_in"] <= most


def test_answers_of_one_prompt_are_read_for_each():
    model, tokenizer = make_model("olmoe"), make_tokenizer()
    sampled = GENERATE | {"do_sample": True, "temperature": 1.0, "until": []}
    lm = _lm(model, tokenizer, "clean")
    requests = [Request(("Twice:", sampled), repeat) for repeat in range(2)]
    lm.answer("generate_until", requests, lambda *_: None)
    asked = Asked()
    asked.read(
        encoder_of(model.config, tokenizer, 128, None), "generate_until", ("Twice:", sampled), 2
    )
    assert lm.cost["tokens_out"] == asked.answer_tokens == 14 and asked.answers == 2
    assert planned_tokens(asked, lm.ensemble) == lm.cost["tokens_in"]


def test_the_longest_request_has_its_longest_answer():
    scored = {(1, 2, 3): {(4,): None, (5, 6): None}}
    assert Asked(scored).longest == 5
    assert Asked(scored, {"a": [((1,), (2,) * 6)]}).longest == 7
    prompts = {"a": Prompt((1, 2), (3, 9)), "b": Prompt((1,) * 4, (1,))}
    assert Asked(scored, generated={"": prompts}).longest == 11
    assert Asked().longest == 0


def test_c3po_holds_its_questions_and_their_neighbours_in_the_changed_layers():
    """32 questions of 10 tokens with 3 neighbours each, from the fifth of eight layers on; four answers of two tokens."""
    settings = get_method("c3po").Config(name="c3po", layers="last4", k=3)
    asked = Asked(
        {(question,) * 8: {(answer, 0): None for answer in range(4)} for question in range(5)}
    )
    held = get_method("c3po")(settings).held(Workload(5, ((1.0, asked),)), facts(moe_layers=8))
    assert held == (32 * (1 + 3) * 10 * 4 / 8, 32 * 4 * 2)


def _lm(model: Any, tokenizer: Any, name: str) -> EngineLM:
    keys = ENSEMBLES[name]
    routing = {"routing": GumbelTopK([0.5] * 4, 0)} if keys else {}
    return EngineLM(
        model, tokenizer, ensemble=Ensemble(**keys, **routing), max_length=128, progress=False
    )
