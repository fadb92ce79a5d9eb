"""Kernel regression: known answers at the ends of alpha and of the bandwidth, and the alpha with the least loss."""

from __future__ import annotations

import pytest
import torch

from moe_lab.errors import RoutingError
from moe_lab.methods.c3po.kernel_regression import ALPHAS, kernel_regression
from moe_lab.methods.c3po.kernels import kernel
from moe_lab.methods.c3po.loss import NeighbourLoss
from tests.support import rounding
from tests.support.c3po import WEIGHT_NK

DISTANCE_NK = torch.tensor([[0.5, 0.4, 0.9], [0.8, torch.inf, 0.2], [torch.inf] * 3])


def loss_with(setting, weight_NK):
    return NeighbourLoss(setting.tails, setting.neighbours, weight_NK)


def pathway_of(setting, token):
    return token.pathway_WME[:, setting.layers]


def test_alpha_1_is_the_untouched_pathway(setting):
    changed, losses = kernel_regression(setting.pathways(), setting.loss(), 1.0)
    torch.testing.assert_close(changed.probs_NWLE(), setting.pathway_NWME[:, :, setting.layers])
    rounding.assert_close(losses[0], losses[1], equal_nan=True)


def test_alpha_0_with_all_experts_is_the_weighted_mean_of_the_neighbours(setting):
    """Equation 4 as it stands."""
    changed, _ = kernel_regression(setting.pathways(core=None), setting.loss(), 0.0)
    for n in range(2):
        parts = [
            weight * pathway_of(setting, token)
            for weight, token in zip(WEIGHT_NK[n], setting.neighbours[n], strict=True)
            if token is not None
        ]
        torch.testing.assert_close(changed.probs_NWLE()[n], sum(parts) / WEIGHT_NK[n].sum())


def test_core_experts_take_the_means_proportions_and_others_keep_theirs(setting):
    pathways = setting.pathways()
    changed, _ = kernel_regression(pathways, setting.loss(), 0.0)
    mean_NWLE = setting.loss().mean_pathway(pathways)
    found, clean = changed.probs_NWLE(), pathways.clean_NWLE
    core_ratio = found[:2].gather(-1, pathways.core[:2]) / mean_NWLE[:2].gather(-1, pathways.core[:2])
    torch.testing.assert_close(core_ratio, core_ratio[..., :1].expand_as(core_ratio))
    outside = torch.ones_like(clean, dtype=torch.bool).scatter(-1, pathways.core, False)
    assert torch.equal(found[outside], clean[outside])
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:3]))


def test_bandwidth_0_takes_the_nearest_and_infinity_the_plain_mean(setting):
    nearest = [setting.references[1], setting.references[4]]
    narrow = loss_with(setting, kernel("gaussian", DISTANCE_NK, 1e-4))
    changed, _ = kernel_regression(setting.pathways(core=None), narrow, 0.0)
    for n in range(2):
        torch.testing.assert_close(changed.probs_NWLE()[n], pathway_of(setting, nearest[n]))
    wide = loss_with(setting, kernel("gaussian", DISTANCE_NK, 1e6))
    changed, _ = kernel_regression(setting.pathways(core=None), wide, 0.0)
    for n in range(2):
        mean = torch.stack([pathway_of(setting, token) for token in setting.neighbours[n] if token]).mean(0)
        torch.testing.assert_close(changed.probs_NWLE()[n], mean)


def test_the_alpha_of_least_loss_is_taken_question_by_question(setting):
    pathways, loss = setting.pathways(), setting.loss()
    changed, losses = kernel_regression(pathways, loss, None)
    fixed = [kernel_regression(pathways, loss, alpha) for alpha in ALPHAS]
    for n in range(2):
        best = min(range(len(ALPHAS)), key=lambda a: fixed[a][1][1, n].item())
        rounding.assert_close(losses[1, n], fixed[best][1][1, n])
        torch.testing.assert_close(changed.theta[n], fixed[best][0].theta[n])
        assert losses[1, n] <= losses[0, n] + 1e-6


@pytest.mark.parametrize("alpha", [None, 0.0])
def test_without_neighbours_a_pathway_stays(setting, alpha):
    pathways = setting.pathways()
    changed, losses = kernel_regression(pathways, setting.loss(), alpha)
    rounding.assert_close(changed.theta[2], pathways.theta[2])
    assert losses[:, 2].isnan().all()
    nobody = NeighbourLoss(setting.tails, [[None]] * 3, torch.zeros(3, 1))
    changed, losses = kernel_regression(pathways, nobody, alpha)
    rounding.assert_close(changed.theta, pathways.theta)
    assert losses.isnan().all()


def test_a_loss_that_is_nan_is_told(olmoe, monkeypatch):
    """Else the least of eleven losses would be the one that could not be computed."""
    loss = olmoe.loss()
    values = iter([2.0] * 3 + [float("nan")] + [2.0] * 20)
    monkeypatch.setattr(
        NeighbourLoss, "value", lambda self, pathways, relax: self.seen(torch.full((3,), next(values)))
    )
    with pytest.raises(RoutingError, match="loss is NaN"):
        kernel_regression(olmoe.pathways(), loss, None)
