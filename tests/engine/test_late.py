"""Samples of a single token fork in front of the MoE block only where that equals a fork in front of the layer.

Broken by a family in `LATE` whose layer does anything but add its block's output to each token.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from moe_lab.engine.forward import clean_history
from moe_lab.engine.forward.batch import TokenTree, collate
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.routing import GumbelTopK, find_routers
from tests.support import rounding
from tests.support.models import small_model
from tests.support.tiers import by_family


def logits_of_steps(model):
    """[M, n, V] of two steps of three sequences, all MoE layers with noise."""
    rng = random.Random(0)
    prompts = [[rng.randrange(250) for _ in range(9)] for _ in range(3)]
    routing = GumbelTopK([2.0] * len(find_routers(model)), 1)
    logits = []
    with EnsembleForward(model, Ensemble(4, routing)) as forward:
        cache = forward.new_cache()
        forward(
            replace(collate([TokenTree(prompt, []) for prompt in prompts], 0, forward.device), noise=False),
            cache,
        )
        for step in range(2):
            trees = [
                TokenTree([*prompt, 5, 5][: 10 + step], [[0]], 9 + step, document)
                for document, prompt in enumerate(prompts)
            ]
            logits.append(forward(collate(trees, 9 + step, forward.device), cache))
    assert routing.decisions[0] > 0
    return torch.cat(logits)


@pytest.mark.parametrize("family", by_family(sorted(clean_history.LATE)))
def test_late_is_the_same_as_in_front_of_the_layer(family, monkeypatch):
    model = small_model(family)
    late = logits_of_steps(model)
    monkeypatch.setattr(clean_history, "LATE", frozenset())
    rounding.assert_close(late, logits_of_steps(model))


def test_a_family_that_is_not_known_parts_in_front_of_the_layer(monkeypatch):
    model = small_model("dbrx")
    right = logits_of_steps(model)
    monkeypatch.setattr(clean_history, "LATE", frozenset({"dbrx"}))
    assert (right - logits_of_steps(model)).abs().max() > 0.1
