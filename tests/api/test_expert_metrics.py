"""The metrics are those of a loop over texts, one at a time."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from moe_lab import expert_metrics, record
from moe_lab.errors import ConfigError
from tests.support.models import small_model
from tests.support.tiers import by_family

TEXTS = ["what is a cat and why", "hello", "two and two are four, and four and four are eight"]


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_load_balance_and_accuracy_are_those_of_a_loop(family, tokenizer):
    model = small_model(family)
    found = expert_metrics(model, TEXTS, tokenizer)
    selected, right, predicted = [Counter() for _ in range(4)], 0, 0
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text)])
        with torch.no_grad(), record(model) as routes:
            guesses = model(ids).logits[0, :-1].argmax(-1).tolist()
        right += sum(guess == token for guess, token in zip(guesses, ids[0, 1:].tolist(), strict=True))
        predicted += len(guesses)
        for layer, index_TK in enumerate(routes.indices):
            selected[layer].update(index_TK.flatten().tolist())
    entropies = [
        -sum(n / counts.total() * math.log2(n / counts.total()) for n in counts.values())
        for counts in selected
    ]
    layers = [entropy for entropy, counts in zip(entropies, selected, strict=True) if counts]
    assert found["load_balance"]["counted"] == pytest.approx(sum(layers) / len(layers))
    assert found["accuracy"]["value"] == pytest.approx(right / predicted)
    assert {"collaboration", "capacity", "specialization"} <= found.keys()
    assert expert_metrics(model, [tokenizer.encode(text) for text in TEXTS]) | {"seconds": 0} == found | {
        "seconds": 0
    }


def test_texts_that_cannot_be_read_are_refused(olmoe, tokenizer):
    for texts, with_tokenizer, says in (
        (TEXTS, None, "needs the tokenizer"),
        (["a"], tokenizer, "has 1 tokens"),
        (["a" * 600], tokenizer, "between 2 and 512"),
        ([], tokenizer, "no text"),
    ):
        with pytest.raises(ConfigError, match=says):
            expert_metrics(olmoe, texts, with_tokenizer)
