"""Layers that do not run are not missed inside their context, and are missed again after it."""

from __future__ import annotations

from torch import nn

from moe_lab.routing.left_out import is_left_out, leaving_out


def test_parts_of_a_layer_are_left_out_inside_the_context_alone():
    layers = [nn.Sequential(nn.Linear(1, 1)) for _ in range(2)]
    with leaving_out(layers[:1]):
        with leaving_out(layers):
            assert is_left_out(layers[1][0])
        assert is_left_out(layers[0][0]) and not is_left_out(layers[1][0])
    assert not is_left_out(layers[0])
