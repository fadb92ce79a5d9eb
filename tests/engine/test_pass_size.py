"""Passes that do not fit are halved, with the same answers; sizes follow from the free
memory and the model's shape.

Broken by a request that is answered twice or not at all after a halving, by a message for each
pass, by an error that is no lack of memory and is taken for one, by passes of noisy samples
that batch_size=1 does not shrink.
"""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moe_lab.engine import pass_size, two_phase
from moe_lab.engine.footprint import footprint_of, meta_model
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.kv_cache import token_bytes
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.scoring import Budget
from moe_lab.models.memory import weight_bytes
from moe_lab.routing import GumbelTopK
from tests.support.ensembles import assert_log_likelihoods, text
from tests.support.models import make_model, small_model

# Passes that do not fit


def requests(kind: str) -> list[Request]:
    rng = random.Random(1)
    texts = [text(rng, words) for words in (3, 12, 20, 5, 16)]
    if kind == "generate_until":
        return [Request((prompt, {"max_gen_toks": 4, "until": []})) for prompt in texts]
    return [Request((context, " and then")) for context in texts]


def ask(lm: EngineLM, kind: str) -> list[Any]:
    answers: dict[int, Any] = {}

    def on_answer(index: int, answer: Any) -> None:
        assert index not in answers, "answered twice"
        answers[index] = answer

    lm.answer(kind, requests(kind), on_answer)
    return [answers[index] for index in range(len(answers))]


@contextmanager
def memory_for(tokens: int, model: Any) -> Iterator[list[int]]:
    """Larger passes of the model fail for want of memory. Yields the sizes of all passes."""
    sizes = []

    def fail_if_larger(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", kwargs.get("inputs_embeds"))
        size = ids.shape[0] * ids.shape[1]
        sizes.append(size)
        if size > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    with model.register_forward_pre_hook(fail_if_larger, with_kwargs=True):
        yield sizes


@pytest.mark.parametrize("kind", ["loglikelihood", "generate_until"])
@pytest.mark.parametrize(("cache", "cpu_tokens"), [("clean", 400), ("standard", 1200)])
def test_out_of_memory_halves_the_passes_and_goes_on(
    olmoe, tokenizer, monkeypatch, caplog, kind, cache, cpu_tokens
):
    ensemble = Ensemble(3, GumbelTopK([0.0, 1.0, 1.0, 1.0], seed=0), first_noisy=1, cache=cache)
    expected = ask(EngineLM(olmoe, tokenizer, ensemble=ensemble, progress=False), kind)

    monkeypatch.setattr(pass_size, "CPU_TOKENS", cpu_tokens)
    with caplog.at_level(logging.WARNING, "moe_lab"), memory_for(150, olmoe) as sizes:
        lm = EngineLM(olmoe, tokenizer, ensemble=ensemble, progress=False)
        answers = ask(lm, kind)
        warnings = [
            record.message for record in caplog.records if "Out of memory" in record.message
        ]
        answers_again = ask(lm, kind)

    if kind == "generate_until":
        assert answers == expected
        assert answers_again == expected
    else:
        assert_log_likelihoods(answers, expected)
    failed = [size for size in sizes if size > 150]
    assert len(warnings) >= 1
    assert len(failed) == len(warnings), "once for each halving, and the smaller size is kept"
    assert f"at most {lm.budget.tokens} tokens" in warnings[-1]


@contextmanager
def failing(model: Any, message: str) -> Iterator[None]:
    """Every pass of the model raises this error, which reaches the caller."""

    def fail(module: Any, args: Any) -> None:
        raise RuntimeError(message)

    with model.register_forward_pre_hook(fail), pytest.raises(RuntimeError, match=message):
        yield


def test_other_errors_are_raised(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer, progress=False)
    budget = replace(lm.budget)
    with failing(olmoe, "shapes do not fit"):
        ask(lm, "loglikelihood")
    assert lm.budget == budget


def test_the_error_of_the_smallest_pass_is_raised(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer, progress=False)
    with failing(olmoe, "CUDA out of memory."):
        ask(lm, "loglikelihood")
    assert lm.budget.tokens == pass_size.LEAST_TOKENS
    assert lm.budget.sequences == 1


def widest_noisy_pass(budget: Budget) -> int:
    """The most tokens of a pass that reads 7 samples of each of 1,000 tokens of a text."""
    kv_cache = SimpleNamespace(length=1000)
    text = SimpleNamespace(kv_cache=kv_cache, position_M=torch.zeros(1000))
    widest = 0
    for chunks in two_phase.passes([text], 7, budget):
        tokens = sum(len(chunk.at_C) for chunk in chunks)
        widest = max(widest, tokens * 7)
    return widest


def test_batch_size_1_shrinks_noisy_passes():
    """A text of 1,000 tokens had all of its samples in passes of 16,384."""
    assert widest_noisy_pass(Budget(16384)) == 7000
    assert widest_noisy_pass(Budget(16384, 1)) <= two_phase.CHUNK_SAMPLES


# Sizes


@pytest.mark.parametrize("family", ["olmoe", "qwen2_moe"])
def test_the_footprint_of_a_token(family):
    """Against hand-counted bounds: the chosen experts' inputs and outputs are alive at once,
    and not those of all experts; the keys and values are those of the cache."""
    model = make_model(family)
    footprint = footprint_of(model)
    assert footprint.slot == token_bytes(model)

    hidden_bytes = 48 * 4
    inner_bytes = 24 * 4
    chosen_experts = 2
    chosen_bytes = chosen_experts * (hidden_bytes + 2 * inner_bytes)
    assert chosen_bytes < footprint.token < 6 * (chosen_bytes + hidden_bytes)
    assert footprint.kept > 4 * footprint.token / 2, "four layers keep what gradients need"

    model.set_attn_implementation("eager")
    assert footprint_of(model).token > 5 * footprint.token, "the attention of all pairs of tokens"


def test_a_family_whose_code_reads_values_is_metered_by_its_own_weights():
    model = small_model("jetmoe")
    footprint = footprint_of(model)
    assert footprint.model is model
    assert footprint.token > 0


def test_the_planned_device_has_room_for_a_pass_and_for_what_is_held():
    """After 20,000 slots, keys and values of a sequence take more memory than the pass.

    So do rows of logits.
    """
    model = meta_model(make_model("olmoe").config, torch.float32)
    weights = weight_bytes(model)
    pass_bytes = int(2048 * footprint_of(model).token / 0.2)
    slot_bytes = token_bytes(model)
    row_bytes = model.config.vocab_size * (4 + 12)

    small = pass_size.planned_memory(model, 10, 1)
    many_slots = pass_size.planned_memory(model, 20_000, 3)
    many_rows = pass_size.planned_memory(model, 10, 20_000)

    assert small == weights + pass_bytes
    assert many_slots == weights + 2 * (20_000 * slot_bytes + 3 * row_bytes)
    assert many_slots > small
    assert many_rows == weights + 2 * (10 * slot_bytes + 20_000 * row_bytes)
    assert many_rows > small


def test_the_size_follows_from_the_free_memory(olmoe, monkeypatch):
    accelerator = meta_model(olmoe.config, torch.float32)

    def budget_with(free: int) -> Budget:
        monkeypatch.setattr(pass_size, "free_memory", lambda device: free)
        budget = pass_size.pass_budget(accelerator)
        pass_size.bound_gradients(accelerator, budget)
        return budget

    little = budget_with(10**6)
    medium = budget_with(10**7)
    plenty = budget_with(10**12)

    footprint = footprint_of(olmoe)
    pass_bytes = int(pass_size.PASS_SHARE * 10**7)
    assert little.tokens < medium.tokens
    assert medium.tokens == pass_bytes // footprint.token
    assert medium.slots == 10**7 // 2 // token_bytes(olmoe)
    assert medium.gradient_tokens == pass_bytes // footprint.kept
    assert medium.row == pytest.approx(2 * 4 * olmoe.config.vocab_size / footprint.token)
    assert plenty.tokens == pass_size.MOST_TOKENS
