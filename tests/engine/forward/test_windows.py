"""Attention windows and chunks of layers.

Broken by a window that counts padding, other branches or samples as tokens, and by a family
whose configuration names windows that its layers do not have, or the other way round.
"""

from typing import Any

import pytest
import torch

from moe_lab.engine.forward.layers import FULL, AttentionWindow, attention_windows, decoder_layers
from tests.support.families import ON_KV_CACHE, WINDOW
from tests.support.models import kv_cache_model
from tests.support.tiers import by_family


def masks_by_layer(model: Any, ids: torch.Tensor, visible: torch.Tensor) -> list[torch.Tensor]:
    """The attention mask that transformers gives each layer.

    A token attends to the slots with True or 0.
    """
    masks = []

    def keep_mask(layer: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        masks.append(kwargs["attention_mask"])

    handles = []
    for layer in decoder_layers(model):
        handles.append(layer.register_forward_pre_hook(keep_mask, with_kwargs=True))
    with torch.no_grad():
        model(ids, attention_mask=visible)
    for handle in handles:
        handle.remove()
    return masks


@pytest.mark.parametrize("family", by_family(ON_KV_CACHE))
def test_each_layer_has_the_mask_that_the_model_gives_it(family):
    model = kv_cache_model(family)
    length = 3 * WINDOW
    ids = torch.zeros(2, length, dtype=torch.long)
    visible = torch.ones(2, length, dtype=torch.long)
    visible[0, :3] = 0  # sdpa makes no mask where it can do without

    masks = masks_by_layer(model, ids, visible)

    causal = torch.ones(length, length, dtype=torch.bool).tril()
    windows = attention_windows(model)
    assert len(masks) == len(windows)
    for layer, window in enumerate(windows):
        mask = masks[layer][1, 0]
        if mask.dtype != torch.bool:
            mask = mask == 0
        [expected] = window.limit(causal[None])
        assert mask.equal(expected), layer


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (AttentionWindow(window=2), [0, 0, 0, 0, 0, 1, 1]),
        (AttentionWindow(chunk=3), [0, 0, 0, 0, 0, 1, 1]),
        (AttentionWindow(chunk=2), [0, 0, 0, 0, 0, 0, 1]),
        (AttentionWindow(window=9), [1, 0, 1, 1, 0, 1, 1]),
        (FULL, [1, 0, 1, 1, 0, 1, 1]),
    ],
)
def test_a_window_counts_visible_tokens_only(window, expected):
    # positions 0, -, 1, 2, -, 3, 4
    visible = torch.tensor([[[1, 0, 1, 1, 0, 1, 1]]], dtype=torch.bool)
    assert window.limit(visible).int().tolist() == [[expected]]
