"""Regularizers of routers. Broken by: an axis or a factor (E, K, tokens) too many, a choice that differs from the given
one, a group of experts that is not contiguous, a gradient through the choice.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers.models.olmoe.modeling_olmoe import load_balancing_loss_func

from moe_lab.methods.pretrain.losses import balance_loss, device_loss, load, z_loss

SHAPES = [(1, 2, 1), (5, 7, 3), (7, 5, 2), (6, 4, 4)]
"""Tokens, experts, experts per token: all different where an axis could be taken for another."""


def given(tokens: int, experts: int, k: int) -> tuple[Tensor, Tensor]:
    """float64 logits, and experts that are not those of the highest logits."""
    generator = torch.Generator().manual_seed(tokens)
    logits_TE = torch.randn(tokens, experts, generator=generator, dtype=torch.float64)
    index_TK = torch.stack([torch.randperm(experts, generator=generator)[:k] for _ in range(tokens)])
    return logits_TE, index_TK


def shares(logits_TE: Tensor, index_TK: Tensor) -> tuple[list[float], list[float]]:
    """f and P of every expert."""
    tokens, experts = logits_TE.shape
    chosen, probability = [0.0] * experts, [0.0] * experts
    for token in range(tokens):
        numbers = [math.exp(logit) for logit in logits_TE[token].tolist()]
        for expert in range(experts):
            chosen[expert] += (expert in index_TK[token].tolist()) / tokens
            probability[expert] += numbers[expert] / sum(numbers) / tokens
    return chosen, probability


def by_loops(name: str, logits_TE: Tensor, index_TK: Tensor, devices: int = 1) -> float:
    f, p = shares(logits_TE, index_TK)
    if name == "balance":
        return sum(a * b for a, b in zip(f, p, strict=True))
    if name == "z":
        sums = [math.log(sum(math.exp(logit) for logit in row)) for row in logits_TE.tolist()]
        return sum(each**2 for each in sums) / len(sums)
    size, k = len(f) // devices, index_TK.shape[1]
    groups = [range(size * device, size * (device + 1)) for device in range(devices)]
    return sum(
        sum(len(f) / k * f[expert] for expert in group) / size * sum(p[expert] for expert in group)
        for group in groups
    )


LOSSES = {
    "balance": lambda logits, index: balance_loss(logits, index),
    "z": lambda logits, index: z_loss(logits),
    "device": lambda logits, index: device_loss(logits, index, 3),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ("balance", "z"))
def test_losses_are_their_formulas(name, shape):
    logits_TE, index_TK = given(*shape)
    found = LOSSES[name](logits_TE.float(), index_TK)
    assert found.dtype == torch.float32 and found.dim() == 0
    assert found.item() == pytest.approx(by_loops(name, logits_TE, index_TK), rel=1e-6)


@pytest.mark.parametrize("devices", (1, 2, 3, 6))
def test_the_device_loss_is_its_formula(devices):
    logits_TE, index_TK = given(5, 6, 2)
    expected = by_loops("device", logits_TE, index_TK, devices)
    assert device_loss(logits_TE.float(), index_TK, devices).item() == pytest.approx(expected, rel=1e-6)
    if devices == 6:
        assert expected == pytest.approx(6 / 2 * by_loops("balance", logits_TE, index_TK))
    if devices == 1:
        assert expected == pytest.approx(1.0), "one device has all"


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_finite_differences(name):
    """Of the loops in float64, along every logit. The choice stays: f has no gradient."""
    logits_TE, index_TK = given(4, 6, 2)
    leaf_TE = logits_TE.float().requires_grad_()
    LOSSES[name](leaf_TE, index_TK).backward()
    for place in range(logits_TE.numel()):
        values = []
        for sign in (1, -1):
            moved_TE = logits_TE.clone()
            moved_TE.view(-1)[place] += sign * 1e-4
            values.append(by_loops(name, moved_TE, index_TK, 3))
        expected = (values[0] - values[1]) / 2e-4
        assert leaf_TE.grad.view(-1)[place].item() == pytest.approx(expected, abs=1e-6)


def test_uniform_routing_has_the_value_of_the_docs():
    """K / E, log(E) squared, and 1; all experts on one device cost the number of devices."""
    logits_TE = torch.zeros(6, 6)
    index_TK = torch.tensor([[token, (token + 1) % 6] for token in range(6)])
    assert balance_loss(logits_TE, index_TK).item() == pytest.approx(2 / 6)
    assert z_loss(logits_TE).item() == pytest.approx(math.log(6) ** 2)
    assert device_loss(logits_TE, index_TK, 3).item() == pytest.approx(1.0)
    logits_TE[:, :2] = 50.0
    first_TK = torch.tensor([[0, 1]] * 6)
    assert balance_loss(logits_TE, first_TK).item() == pytest.approx(1.0)
    assert device_loss(logits_TE, first_TK, 3).item() == pytest.approx(3.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_loss_of_one_layer_is_e_times_ours(shape):
    """Of several layers it is not: theirs multiplies means over the tokens of all layers."""
    tokens, experts, k = shape
    layers = [given(*shape)[0].float(), given(*shape)[0].float().flip(1) * 3]
    ours = [balance_loss(logits_TE, logits_TE.topk(k).indices) for logits_TE in layers]
    for logits_TE, own in zip(layers, ours, strict=True):
        theirs = load_balancing_loss_func((logits_TE,), experts, k)
        torch.testing.assert_close(theirs, experts * own)
    if tokens > 1 and k < experts:
        pooled = load_balancing_loss_func(tuple(layers), experts, k)
        assert not torch.isclose(pooled, experts * sum(ours) / 2, rtol=1e-3)


def test_load_counts_every_choice():
    assert load(torch.tensor([[0, 3], [3, 4], [3, 0]]), 6).tolist() == [2, 0, 0, 3, 1, 0]
    assert load(torch.empty(0, 2, dtype=torch.int64), 3).tolist() == [0, 0, 0]


def test_half_precision_logits_are_summed_in_float32():
    logits_TE, index_TK = given(64, 8, 2)
    low_TE = logits_TE.bfloat16()
    for name in ("balance", "z"):
        found = LOSSES[name](low_TE, index_TK)
        assert found.dtype == torch.float32
        assert found.item() == pytest.approx(by_loops(name, low_TE.double(), index_TK), rel=1e-5)
