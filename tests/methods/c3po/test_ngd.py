"""Gradient descent on the neighbours' loss: its gradient is that of whole passes, and it changes what it may only."""

from __future__ import annotations

import copy

import pytest
import torch

from moe_lab.engine.prompt_tails import PromptTails
from moe_lab.engine.scoring import Budget
from moe_lab.errors import RoutingError
from moe_lab.methods.c3po.loss import NeighbourLoss
from moe_lab.methods.c3po.ngd import Descent, learning_rates, ngd
from moe_lab.methods.c3po.pathway import Pathways
from tests.engine.brute_prompt_tail import prompts, whole_logits
from tests.methods.c3po.conftest import CORE, GOLD, WEIGHT_NK

SMALL = (1e-3, 1e-3)


def brute_loss(setting, pathways, n, relax, kind):
    """Equation 3 for question n, by whole passes of its neighbours' prompts without any cache."""
    probs = {layer: probs_NE[n] for layer, probs_NE in pathways.probs().items()}
    experts = {layer: pathways.core[n, i] for i, layer in enumerate(setting.layers)}
    total = torch.zeros(())
    for j, token in enumerate(setting.neighbours[n]):
        if token is None:
            continue
        prompt = prompts(seed=1)[setting.references.index(token)]
        logits_V = whole_logits(
            setting.model, prompt, len(prompt) - 1, probs, experts if relax == "core" else None
        )[-1]
        target_V = torch.nn.functional.one_hot(torch.tensor(GOLD[n][j]), len(logits_V))
        losses = {
            "cross_entropy": -logits_V.log_softmax(-1)[GOLD[n][j]],
            "l2": (logits_V.softmax(-1) - target_V).square().sum(),
        }
        total = total + WEIGHT_NK[n, j] * losses[kind]
    return total / WEIGHT_NK[n].sum()


@pytest.mark.parametrize("kind", ["cross_entropy", "l2"])
@pytest.mark.parametrize("relax", ["core", "topk"])
def test_loss_and_gradient_are_those_of_whole_passes(setting, relax, kind):
    """Brute-force autograd through the whole model: no cache, no batch, the weights written by a hook."""
    pathways = setting.pathways()
    with torch.no_grad():
        pathways.theta += torch.randn(pathways.theta.shape, generator=torch.Generator().manual_seed(0))
    loss_N = setting.loss(kind)(pathways, relax)
    (gradient,) = torch.autograd.grad(loss_N.sum(), [pathways.theta])
    for n in range(2):
        expected = brute_loss(setting, pathways, n, relax, kind)
        (brute,) = torch.autograd.grad(expected, [pathways.theta])
        torch.testing.assert_close(loss_N[n], expected, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(gradient[n], brute[n], atol=2e-6, rtol=1e-3)
        assert relax == "topk" or brute[n].abs().max() > 1e-4
    assert loss_N[2] == 0 and not gradient[2].any()


@pytest.mark.parametrize("relax", ["core", "topk"])
def test_gradient_equals_finite_differences(setting, relax):
    """In float64. The differences of topk are taken where no expert changes its place among the first K."""
    model = copy.deepcopy(setting.model).double()
    model.set_experts_implementation("eager")
    tails = PromptTails(model, setting.layers[0])
    references = tails.read(prompts(seed=1), Budget(64))
    neighbours = [[references[0], references[1]], [references[3], references[4]]]
    loss = NeighbourLoss(tails, neighbours, GOLD[:2], torch.tensor([[1.0, 0.5], [0.3, 0.9]]).double())
    E = setting.pathway_NME.shape[-1]
    steep_NME = (torch.linspace(2, -2, E).double().softmax(-1)).expand_as(setting.pathway_NME)[:2]
    pathways = Pathways(steep_NME, setting.layers, CORE)
    (gradient,) = torch.autograd.grad(loss(pathways, relax).sum(), [pathways.theta])
    step = 5e-3
    for n, i, c in [(0, 0, 0), (0, 1, 1), (1, 0, 3), (1, 1, 4), (1, 0, 1)]:
        around = []
        for sign in (1, -1):
            moved = pathways.copy()
            with torch.no_grad():
                moved.theta[n, i, c] += sign * step
            around.append(loss.value(moved, relax).sum())
        difference = (around[0] - around[1]) / (2 * step)
        torch.testing.assert_close(gradient[n, i, c], difference, atol=2e-5, rtol=2e-3)


@pytest.mark.parametrize("update", ["adam", "gd"])
def test_a_small_step_lowers_the_loss(setting, update):
    descent = Descent(steps=1, update=update, rates=SMALL, schedule="fixed")
    _, losses = ngd(setting.pathways(), setting.loss(), descent)
    assert losses.shape == (2, 3) and (losses[1, :2] < losses[0, :2]).all()


def test_no_steps_change_nothing(setting):
    pathways = setting.pathways()
    changed, losses = ngd(pathways, setting.loss(), Descent(steps=0))
    assert torch.equal(changed.theta, pathways.theta) and losses.shape == (1, 3)
    torch.testing.assert_close(
        setting.tails.logits(setting.questions, changed.remix("topk")),
        setting.tails.logits(setting.questions, None),
        atol=2e-6,
        rtol=0,
    )


def test_only_questions_with_neighbours_change_and_their_input_does_not(setting):
    pathways = setting.pathways()
    before = pathways.theta.detach().clone()
    changed, losses = ngd(pathways, setting.loss(), Descent(steps=3))
    assert torch.equal(pathways.theta, before) and pathways.theta.grad is None
    assert torch.equal(changed.theta[2], before[2]) and losses[:, 2].isnan().all()
    assert (changed.theta[:2] != before[:2]).any(dim=-1).all() and losses[:, :2].isfinite().all()


@pytest.mark.parametrize("relax", ["core", "topk"])
def test_a_question_does_not_depend_on_those_it_is_batched_with(setting, relax):
    descent = Descent(steps=4, relax=relax)
    together, losses = ngd(setting.pathways(), setting.loss(), descent)
    for n in range(3):
        one = slice(n, n + 1)
        alone = Pathways(setting.pathway_NME[one], setting.layers, CORE)
        changed, own_losses = ngd(alone, setting.loss(rows=one), descent)
        torch.testing.assert_close(together.theta[one], changed.theta, atol=2e-4, rtol=1e-3)
        torch.testing.assert_close(losses[:, one], own_losses, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_many_steps_learn_the_neighbours_answers(setting):
    _, losses = ngd(setting.pathways(), setting.loss(), Descent(steps=20, rates=(0.3, 0.3)))
    assert (losses[-1, :2] < losses[0, :2] - 0.02).all()


def test_many_neighbours_in_several_passes_give_the_same(setting, monkeypatch):
    """An ε-ball may hold hundreds: two rows a pass, so that one question's neighbours are parted."""
    whole, losses = ngd(setting.pathways(), setting.loss(), Descent(steps=3))
    monkeypatch.setattr("moe_lab.methods.c3po.loss.ROWS", 2)
    parts, own_losses = ngd(setting.pathways(), setting.loss(), Descent(steps=3))
    torch.testing.assert_close(parts.theta, whole.theta, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(own_losses, losses, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_plain_gradient_descent_follows_equation_1(olmoe):
    pathways = olmoe.pathways()
    (gradient,) = torch.autograd.grad(olmoe.loss()(pathways, "core").sum(), [pathways.theta])
    changed, _ = ngd(
        pathways, olmoe.loss(), Descent(steps=1, update="gd", rates=(0.7, 0.7), schedule="fixed")
    )
    torch.testing.assert_close(changed.theta, pathways.theta - 0.7 * gradient)


def test_the_oracle_is_the_question_as_its_own_neighbour(olmoe):
    gold = [[5], [6], [7]]
    loss = NeighbourLoss(olmoe.tails, [[token] for token in olmoe.questions], gold, torch.ones(3, 1))
    untouched = olmoe.tails.logits(olmoe.questions, None).log_softmax(-1)
    torch.testing.assert_close(
        loss.value(olmoe.pathways(), "topk"), -untouched[[0, 1, 2], [5, 6, 7]], atol=1e-5, rtol=0
    )
    changed, _ = ngd(olmoe.pathways(), loss, Descent(steps=20, rates=(0.3, 0.3), relax="topk"))
    after = olmoe.tails.logits(olmoe.questions, changed.remix("topk")).log_softmax(-1)
    assert (after[[0, 1, 2], [5, 6, 7]] > untouched[[0, 1, 2], [5, 6, 7]]).all()


def test_no_neighbour_at_all_leaves_every_pathway(olmoe):
    nobody = NeighbourLoss(olmoe.tails, [[None]] * 3, [[0]] * 3, torch.zeros(3, 1))
    changed, losses = ngd(olmoe.pathways(), nobody, Descent(steps=2))
    assert torch.equal(changed.theta, olmoe.pathways().theta) and losses.isnan().all()


def test_a_weighed_neighbour_without_work_is_a_defect(olmoe):
    with pytest.raises(ValueError, match="no last token"):
        NeighbourLoss(olmoe.tails, [[None]], [[0]], torch.ones(1, 1))


def test_a_loss_that_is_nan_is_named(olmoe):
    loss = olmoe.loss()
    loss.share_P[0] = torch.nan
    with pytest.raises(RoutingError, match="NaN"):
        ngd(olmoe.pathways(), loss, Descent(steps=1))


def test_learning_rates():
    assert learning_rates("fixed", 0.1, 0.001, 3) == [0.1, 0.1, 0.1]
    cosine = learning_rates("cosine", 0.1, 0.001, 5)
    assert cosine == pytest.approx([0.1, 0.0855, 0.0505, 0.0155, 0.001], abs=1e-4)
    assert learning_rates("cosine", 0.1, 0.001, 1) == [0.1]
    step = learning_rates("step", 1e-2, 1e-5, 10)
    assert step == pytest.approx([1e-2] * 3 + [1e-3] * 2 + [1e-4] * 3 + [1e-5] * 2)
    assert learning_rates("step", 1e-2, 1e-5, 0) == learning_rates("cosine", 1e-2, 1e-5, 0) == []
