"""Wrong answers as negative evidence. Broken by: wrong answers that become likelier, a gradient that is not the loss's, a
question without right neighbours that is changed.
"""

from __future__ import annotations

import torch

from moe_lab.methods.c3po.contrast import Contrast
from moe_lab.methods.c3po.loss import LOSSES, NeighbourLoss
from moe_lab.methods.c3po.ngd import Descent, ngd
from tests.support.c3po import WEIGHT_NK

WRONG_NK = torch.tensor([[0.7], [0.4], [0.0]])


def contrast(setting, weight: float) -> tuple[Contrast, NeighbourLoss]:
    wrong = NeighbourLoss(
        setting.tails, [[setting.references[4]], [setting.references[0]], [None]], WRONG_NK, "unlikelihood"
    )
    return Contrast(setting.loss(), wrong, weight), wrong


def test_unlikelihood_is_that_of_the_token_not_coming():
    torch.manual_seed(0)
    logits_AV = torch.randn(6, 9, dtype=torch.float64)
    target_A = torch.tensor([0, 8, 3, 3, 1, 5])
    expected = -(1 - logits_AV.softmax(-1)[torch.arange(6), target_A]).log()
    assert torch.allclose(LOSSES["unlikelihood"](logits_AV, target_A), expected)


def test_its_gradient_is_that_of_both_losses(olmoe):
    loss, wrong = contrast(olmoe, 0.5)
    pathways = olmoe.pathways()
    total_N, gradient = loss.gradient(pathways, "core")
    expected_N = setting_loss(olmoe, pathways) + 0.5 * wrong(pathways, "core")
    assert torch.allclose(total_N, expected_N.detach(), atol=1e-6)
    assert torch.allclose(gradient, torch.autograd.grad(expected_N.sum(), [pathways.theta])[0], atol=1e-6)
    assert not torch.allclose(gradient, olmoe.loss().gradient(pathways, "core")[1], atol=1e-6)


def setting_loss(setting, pathways):
    return setting.loss()(pathways, "core")


def test_descent_makes_wrong_answers_less_likely(olmoe):
    descent = Descent(steps=8, rates=(0.1, 0.1), schedule="fixed")
    found = {}
    for weight in (0.0, 20.0):
        loss, wrong = contrast(olmoe, weight)
        changed, _ = ngd(olmoe.pathways(), loss, descent)
        found[weight] = wrong.value(changed, "core")
        assert torch.allclose(changed.probs_NWLE()[2], olmoe.pathways().probs_NWLE()[2], atol=1e-6), (
            "no neighbours"
        )
    plain, _ = ngd(olmoe.pathways(), olmoe.loss(), descent)
    assert torch.allclose(found[0.0][:2], contrast(olmoe, 0.0)[1].value(plain, "core")[:2], atol=1e-6)
    assert (found[20.0][:2] < found[0.0][:2]).all()
    assert contrast(olmoe, 1.0)[0].value(plain, "core").isnan().tolist() == [False, False, True]
    assert WEIGHT_NK[2].sum() == 0
