"""Gradient descent on the neighbours' loss.

Broken by: a gradient that is not that of whole passes, a change outside the pathway, wrong answers
that become more probable, a question without right neighbours that is changed.
"""

import copy
import math
from types import SimpleNamespace

import pytest
import torch

import moe_lab.methods.c3po.descent
from moe_lab.engine import pass_size
from moe_lab.engine.scoring import Budget
from moe_lab.engine.token_span import TokenSpan
from moe_lab.errors import RoutingError
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.descent import EPS, NeighbourLoss, learning_rates, ngd
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.routing.remix import Remix
from tests.support import rounding
from tests.support.brute_prompt_tail import FAMILIES, prompts, whole_logits
from tests.support.c3po import ANSWERS, CORE, LONG_ANSWERS, WEIGHT_NK, setting_of
from tests.support.models import small_model
from tests.support.tiers import first_fast

SPANS = [TokenSpan(), TokenSpan("first", 1), TokenSpan("middle", 1), TokenSpan("last", 3)]


@pytest.fixture(params=first_fast(FAMILIES))
def family(request):
    return request.param


def brute_loss(setting, pathways, n, relax, kind, answers=ANSWERS):
    """Equation 3 for question n: whole passes of its neighbours' texts, without a cache."""
    probs = {layer: probs_NWE[n] for layer, probs_NWE in pathways.probs().items()}
    experts = {layer: pathways.relaxed[n, :, i] for i, layer in enumerate(setting.layers)}
    span = setting.tails.span
    total = torch.zeros(())
    for j, tail in enumerate(setting.neighbours[n]):
        if tail is None:
            continue
        number = next(i for i, reference in enumerate(setting.references) if reference is tail)
        prompt = prompts(seed=1, least=span.size)[number]
        answer = answers[number]
        core = experts if relax == "core" else None
        read = [*prompt, *answer[:-1]]
        logits_TV = whole_logits(setting.model, read, span.start(len(prompt)), probs, core)
        losses = []
        for token, logits_V in zip(answer, logits_TV[len(prompt) - 1 :], strict=True):
            target_V = torch.nn.functional.one_hot(torch.tensor(token), len(logits_V))
            if kind == "l2":
                losses.append((logits_V.softmax(-1) - target_V).square().sum())
            else:
                losses.append(-logits_V.log_softmax(-1)[token])
        total = total + WEIGHT_NK[n, j] * sum(losses) / len(answer)
    return total / WEIGHT_NK[n].sum()


@pytest.mark.parametrize("kind", ["cross_entropy", "l2"])
@pytest.mark.parametrize("relax", ["core", "topk"])
def test_loss_and_gradient_are_those_of_whole_passes(setting, relax, kind):
    """Autograd through the whole model: no cache, no batch, a hook writes the weights."""
    equals_whole_passes(setting, relax, kind, ANSWERS)


@pytest.mark.parametrize(
    ("span", "kind"),
    # a loss reads logits, which know nothing of the span
    [*((span, "cross_entropy") for span in SPANS), (SPANS[-1], "l2")],
    ids=lambda value: str(value),
)
def test_other_tokens_and_longer_answers_too(family, span, kind, monkeypatch):
    """Answers of one to three tokens, in float64, in passes of few tokens."""
    monkeypatch.setattr(pass_size, "CPU_GRADIENT_TOKENS", 12)
    model = copy.deepcopy(small_model(family)).double()
    model.set_experts_implementation("eager")
    setting = setting_of(model, span, LONG_ANSWERS)
    assert len(setting.loss()._parts) > 1
    equals_whole_passes(setting, "core", kind, LONG_ANSWERS, atol=1e-8)


def equals_whole_passes(setting, relax, kind, answers, atol=2e-6):
    pathways = setting.pathways()
    with torch.no_grad():
        pathways.theta += torch.randn(
            pathways.theta.shape, generator=torch.Generator().manual_seed(0)
        )
    loss_N, gradient = setting.loss(kind).gradient(pathways, relax)
    for n in range(2):
        expected = brute_loss(setting, pathways, n, relax, kind, answers)
        (brute,) = torch.autograd.grad(expected, [pathways.theta])
        torch.testing.assert_close(loss_N[n], expected.to(loss_N.dtype), atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(gradient[n], brute[n].to(gradient.dtype), atol=atol, rtol=1e-3)
    assert relax == "topk" or gradient.abs().max() > 30 * atol
    assert loss_N[2] == 0
    assert not gradient[2].any()


class Noted(Remix):
    """Keeps what each router decided, and what became of it."""

    def __call__(self, router, routing):
        changed = super().__call__(router, routing)
        self.__dict__.setdefault("noted", {})[router.layer] = routing, changed
        return changed


def test_three_tokens_change_apart_and_nothing_else_does(family):
    """Experts outside the core keep their probabilities exactly.

    Other tokens and layers keep their experts and weights.
    """
    setting = setting_of(small_model(family), TokenSpan("first", 3), LONG_ANSWERS)
    layer, last_layer = setting.layers
    pathways = Pathways(setting.pathway_NWME, [layer], CORE)
    changed, _ = ngd(pathways, setting.loss(), C3POConfig(steps=3, learning_rate=[0.1, 0.1]))
    moved = changed.probs_NWLE() != pathways.clean_NWLE
    core = torch.zeros_like(moved).scatter(-1, pathways.core, True)
    assert not moved[~core].any()
    assert torch.equal(changed.theta[2], pathways.theta[2])
    steps = (changed.theta - pathways.theta)[:2, :, 0]
    assert (steps[0] != 0).any(-1).all(), "each token has a gradient"
    assert (steps[0, 0] - steps[0, 1]).abs().max() > 1e-3, "of its own"

    remix = Noted(changed.probs())
    setting.tails.score(setting.questions, remix)
    own_probs, given_probs = remix.noted[layer]
    for before, after in zip(own_probs[1:], given_probs[1:], strict=True):
        before = before.unflatten(0, (3, -1))
        after = after.unflatten(0, (3, -1))
        assert torch.equal(before[:, 3:], after[:, 3:])
    assert not torch.equal(own_probs.weights_TK, given_probs.weights_TK)
    assert remix.noted[last_layer][1] is None


def test_only_questions_with_neighbours_change_and_their_input_does_not(setting):
    pathways = setting.pathways()
    before = pathways.theta.detach().clone()
    changed, losses = ngd(pathways, setting.loss(), C3POConfig(steps=3))
    assert torch.equal(pathways.theta, before)
    assert pathways.theta.grad is None
    assert torch.equal(changed.theta[2], before[2])
    assert losses[:, 2].isnan().all()
    assert (changed.theta[:2] != before[:2]).any(dim=-1).all()
    assert losses[:, :2].isfinite().all()


@pytest.mark.parametrize("relax", ["core", "topk"])
def test_a_question_does_not_depend_on_those_it_is_batched_with(setting, relax):
    descent = C3POConfig(steps=4, relax=relax)
    together, losses = ngd(setting.pathways(), setting.loss(), descent)
    for n in range(3):
        question_slice = slice(n, n + 1)
        single_pathways = Pathways(setting.pathway_NWME[question_slice], setting.layers, CORE)
        changed, own_losses = ngd(single_pathways, setting.loss(rows=question_slice), descent)
        torch.testing.assert_close(
            together.theta[question_slice], changed.theta, atol=2e-4, rtol=1e-3
        )
        torch.testing.assert_close(
            losses[:, question_slice], own_losses, atol=1e-5, rtol=1e-5, equal_nan=True
        )


def test_many_neighbours_in_several_passes_give_the_same(setting, monkeypatch):
    """An ε-ball may hold hundreds of neighbours.

    With two rows a pass, the neighbours of one question are in several passes.
    """
    whole, losses = ngd(setting.pathways(), setting.loss(), C3POConfig(steps=3))
    monkeypatch.setattr(moe_lab.methods.c3po.descent, "ROWS", 2)
    monkeypatch.setattr(moe_lab.methods.c3po.descent, "HELD_BYTES", 0)
    parts, own_losses = ngd(setting.pathways(), setting.loss(), C3POConfig(steps=3))
    torch.testing.assert_close(parts.theta, whole.theta, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(own_losses, losses, atol=1e-5, rtol=1e-5, equal_nan=True)


def stepped(parameter_C, gradient_C, moments, update, rate, step):
    """One step in plain numbers: equation 1, or Adam (Kingma and Ba, algorithm 1)."""
    for c, slope in enumerate(gradient_C.tolist()):
        if update == "gd":
            parameter_C[c] -= rate * slope
            continue
        first, second = moments[c]
        first, second = moments[c] = (0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2)
        parameter_C[c] -= (
            rate * first / (1 - 0.9**step) / (math.sqrt(second / (1 - 0.999**step)) + EPS)
        )


@pytest.mark.parametrize(
    ("parameters", "update", "rate"),
    [("weights", "gd", 8), ("weights", "adam", 0.1), ("logits", "adam", 0.3)],
)
def test_descent_equals_a_slow_loop_over_whole_passes(family, parameters, update, rate):
    """In float64: question by question, autograd through the whole model, each weight by itself.

    Some reach 0.
    """
    model = copy.deepcopy(small_model(family)).double()
    model.set_experts_implementation("eager")
    setting = setting_of(model, SPANS[0], LONG_ANSWERS)
    settings = {"parameters": parameters, "update": update, "learning_rate": [rate, rate]}
    start = Pathways(setting.pathway_NWME.double(), setting.layers, CORE)
    changed, losses = ngd(start, setting.loss(), C3POConfig(steps=3, schedule="fixed", **settings))
    clipped = 0
    for n in range(2):
        core_LC = start.core[n, 0]
        weights = start.clean_NWLE[n, 0].gather(-1, core_LC)
        mass_L1 = weights.sum(-1, keepdim=True)
        parameters_list = (weights if parameters == "weights" else weights.log()).tolist()
        moments = [[(0.0, 0.0)] * CORE for _ in parameters_list]
        for step in range(1, 4):
            given_LC = torch.tensor(parameters_list, dtype=torch.float64, requires_grad=True)
            own_pathways = probed(start, given_LC, mass_L1, parameters)
            loss = brute_loss(setting, own_pathways, n, "core", "", LONG_ANSWERS)
            torch.testing.assert_close(
                losses[step - 1, n], loss.to(losses.dtype), atol=2e-6, rtol=1e-5
            )
            (gradient_LC,) = torch.autograd.grad(loss, [given_LC])
            for i, layer in enumerate(parameters_list):
                stepped(layer, gradient_LC[i], moments[i], update, rate, step)
                if parameters == "weights":
                    clipped += sum(weight < 0 for weight in layer)
                    weight_sum = sum(max(weight, 0.0) for weight in layer)
                    layer[:] = [
                        max(weight, 0.0) / weight_sum * float(mass_L1[i]) for weight in layer
                    ]
        expected = probed(
            start, torch.tensor(parameters_list).double(), mass_L1, parameters
        ).core_LC
        torch.testing.assert_close(changed.core_probs()[n, 0], expected, atol=1e-6, rtol=1e-4)
    assert parameters == "logits" or clipped


def probed(start, given_LC, mass_L1, parameters):
    """The pathways of all questions with the parameters of one, as `brute_loss` takes them."""
    shares_LC = (
        given_LC.softmax(-1)
        if parameters == "logits"
        else given_LC / given_LC.sum(-1, keepdim=True)
    )
    core_LC = shares_LC * mass_L1
    core_NWLC = core_LC.expand_as(start.core)
    probs = {
        layer: start.clean_NWLE[:, :, i].scatter(-1, start.core[:, :, i], core_NWLC[:, :, i])
        for i, layer in enumerate(start.layers)
    }
    return SimpleNamespace(probs=lambda: probs, relaxed=start.relaxed, core_LC=core_LC)


def test_a_core_below_the_models_top_k_is_relaxed_with_the_others_it_takes(setting):
    """Figure 4 begins at one core expert, whose share cannot change."""
    top_k = int(setting.model.config.num_experts_per_tok)
    assert top_k > 1
    settings = C3POConfig(steps=2, learning_rate=[0.3, 0.3])
    for core in range(1, top_k):
        pathways = Pathways(setting.pathway_NWME, setting.layers, core, top_k=top_k)
        losses = [setting.loss().value(pathways, relax)[:2] for relax in ("core", "topk")]
        torch.testing.assert_close(*losses, msg="before a step both forms are the base model")
        changed, _ = ngd(pathways, setting.loss(), settings)
        moved = (changed.probs_NWLE() - pathways.probs_NWLE())[:2].abs() > 1e-5
        assert moved.any() == (core > 1)
        assert not moved.scatter(-1, pathways.core[:2], False).any()


def test_the_oracle_is_the_question_as_its_own_neighbour(olmoe):
    read = olmoe.tails.read(prompts(seed=2)[:3], Budget(64), [[[5]], [[6]], [[7]]])
    loss = NeighbourLoss(olmoe.tails, [[tail] for tail in read], torch.ones(3, 1))
    untouched = olmoe.tails.logits(olmoe.questions, None).log_softmax(-1)
    rounding.assert_close(loss.value(olmoe.pathways(), "topk"), -untouched[[0, 1, 2], [5, 6, 7]])
    changed, _ = ngd(
        olmoe.pathways(), loss, C3POConfig(steps=20, learning_rate=[0.3, 0.3], relax="topk")
    )
    after = olmoe.tails.logits(olmoe.questions, changed.remix("topk")).log_softmax(-1)
    assert (after[[0, 1, 2], [5, 6, 7]] > untouched[[0, 1, 2], [5, 6, 7]]).all()


def test_a_loss_that_is_nan_is_named(olmoe):
    loss = olmoe.loss()
    loss.share_P[0] = torch.nan
    with pytest.raises(RoutingError, match="NaN"):
        ngd(olmoe.pathways(), loss, C3POConfig(steps=1))


def test_learning_rates():
    assert learning_rates("fixed", 0.1, 0.001, 3) == [0.1, 0.1, 0.1]
    cosine = learning_rates("cosine", 0.1, 0.001, 5)
    assert cosine == pytest.approx([0.1, 0.0855, 0.0505, 0.0155, 0.001], abs=1e-4)
    assert learning_rates("cosine", 0.1, 0.001, 1) == [0.1]
    step = learning_rates("step", 1e-2, 1e-5, 10)
    assert step == pytest.approx([1e-2] * 3 + [1e-3] * 2 + [1e-4] * 3 + [1e-5] * 2)
    assert learning_rates("step", 1e-2, 1e-5, 0) == learning_rates("cosine", 1e-2, 1e-5, 0) == []
