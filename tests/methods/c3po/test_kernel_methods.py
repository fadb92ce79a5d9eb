"""Pathways, and the methods that mix them: kernels by their formulas, kernel regression
at the ends of alpha and of the bandwidth and at the alpha with the least loss, mode finding on two
clusters with known centres.

Broken by: probabilities that are no distribution, a change of other layers, tokens or experts
than the chosen ones, experts that are chosen or weighed by other probabilities.
"""

import dataclasses
import math

import pytest
import torch

from moe_lab.engine.scoring import Budget
from moe_lab.engine.token_span import TokenSpan
from moe_lab.errors import RoutingError
from moe_lab.methods.c3po.config import ALPHAS, C3POConfig
from moe_lab.methods.c3po.descent import NeighbourLoss
from moe_lab.methods.c3po.kernel_methods import (
    KERNELS,
    SCALED,
    distances,
    kernel,
    kernel_regression,
    mode_finding,
    without_neighbours,
)
from moe_lab.methods.c3po.pathway import Pathways
from tests.support import rounding
from tests.support.brute_prompt_tail import FAMILIES, prompts, whole_logits
from tests.support.c3po import WEIGHT_NK, setting_of
from tests.support.models import small_model
from tests.support.tiers import by_family

N = 3
W = 2
M = 6
E = 9
LAYERS = [1, 4]
CORE = 4


@pytest.fixture
def pathway_NWME():
    torch.manual_seed(0)
    return torch.randn(N, W, M, E).mul(2).softmax(dim=-1)


@pytest.mark.parametrize("core_experts", [None, E, 100])
def test_all_experts_are_the_core_where_there_are_no_more(pathway_NWME, core_experts):
    pathways = Pathways(pathway_NWME, LAYERS, core_experts)
    assert pathways.theta.shape[-1] == E
    torch.testing.assert_close(pathways.mass_NWL1, torch.ones(N, W, 2, 1))


def test_changed_parameters_change_core_experts_alone_and_keep_their_mass(pathway_NWME):
    pathways = Pathways(pathway_NWME, LAYERS, CORE)
    with torch.no_grad():
        pathways.theta += torch.randn(pathways.theta.shape)
    for i, layer in enumerate(LAYERS):
        changed_probs = pathways.probs()[layer]
        clean = pathway_NWME[:, :, layer]
        core = pathways.core[:, :, i]
        assert (clean.gather(-1, core).amin(-1) >= clean.scatter(-1, core, 0).amax(-1)).all(), (
            "the largest"
        )
        torch.testing.assert_close(changed_probs.sum(-1), torch.ones(N, W))
        torch.testing.assert_close(
            changed_probs.gather(-1, core).sum(-1), clean.gather(-1, core).sum(-1)
        )
        outside = torch.ones(N, W, E, dtype=torch.bool).scatter(-1, core, False)
        assert torch.equal(changed_probs[outside], clean[outside])
        assert (changed_probs.gather(-1, core) - clean.gather(-1, core)).abs().min() > 1e-4


def test_an_expert_of_probability_0_can_be_in_the_core():
    pathway_NWME = torch.tensor([[[[0.75, 0.25, 0.0]]]])
    pathways = Pathways(pathway_NWME, [0], 3)
    probs_NWE = pathways.probs()[0]
    torch.testing.assert_close(probs_NWE, pathway_NWME[:, :, 0])
    (gradient,) = torch.autograd.grad(probs_NWE[0, 0, 0], [pathways.theta])
    assert gradient.isfinite().all()


ANSWER = [17, 4]


@pytest.mark.parametrize(
    "span", [TokenSpan(), TokenSpan("first", 2), TokenSpan("last", 3)], ids=str
)
@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_scores_are_those_of_the_pathway(family, span):
    setting = setting_of(small_model(family), span)
    texts = prompts(seed=2, least=span.size)[:3]
    tails = setting.tails.read(texts, Budget(64), [[ANSWER]] * 3)
    pathways = setting.pathways()
    torch.manual_seed(1)
    with torch.no_grad():
        pathways.theta += torch.randn_like(pathways.theta)
    scores = setting.tails.score(tails, pathways.remix("topk"))
    for n, prompt in enumerate(texts):
        start = span.start(len(prompt))
        probs = {layer: probs_NWE[n].detach() for layer, probs_NWE in pathways.probs().items()}
        with torch.no_grad():
            whole = whole_logits(setting.model, [*prompt, ANSWER[0]], start, probs).log_softmax(-1)
        expected = whole[len(prompt) - 1, ANSWER[0]] + whole[len(prompt), ANSWER[1]]
        assert scores[n][0][0] == rounding.approx(float(expected))


DISTANCES = [0.3, 0.7, 1.2]
FORMULAS = {
    "linear": lambda d, h: 1 - d * d / 2,
    "polynomial": lambda d, h: (1 + (1 - d * d / 2)) ** 2,
    "matern": lambda d, h: (1 + math.sqrt(3) * d / h) * math.exp(-math.sqrt(3) * d / h),
    "gaussian": lambda d, h: math.exp(-d * d / (2 * h * h)),
}


MEDIAN = 0.7
"""Of DISTANCES."""
CASES = [(name, None, MEDIAN) for name in KERNELS] + [(name, 0.4, 0.4) for name in SCALED]


@pytest.mark.parametrize(("name", "bandwidth", "used_bandwidth"), CASES)
def test_formulas_with_the_median_where_no_bandwidth_is_given(name, bandwidth, used_bandwidth):
    values = [FORMULAS[name](distance, used_bandwidth) for distance in DISTANCES]
    expected = torch.tensor([value / max(values) for value in values])
    torch.testing.assert_close(kernel(name, torch.tensor([DISTANCES]), bandwidth)[0], expected)


@pytest.mark.parametrize("name", KERNELS)
def test_missing_neighbours_weigh_nothing_and_do_not_move_the_median(name):
    inf = math.inf
    weights = kernel(name, torch.tensor([[*DISTANCES, inf, inf], [inf] * 5]))
    torch.testing.assert_close(weights[0, :3], kernel(name, torch.tensor([DISTANCES]))[0])
    assert weights[0, 3:].tolist() == [0, 0]
    assert weights[1].tolist() == [0] * 5
    assert kernel(name, torch.empty(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("name", SCALED)
def test_small_and_large_bandwidths_take_the_nearest_and_all_alike(name):
    distance = torch.tensor([DISTANCES])
    assert kernel(name, distance, 1e-3)[0].tolist() == [1, 0, 0]
    torch.testing.assert_close(kernel(name, distance, 1e5)[0], torch.ones(3))


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_is_finite_if_the_median_distance_is_0(name):
    weights = kernel(name, torch.tensor([[0.0, 0.0, 1.0]]))
    assert weights.isfinite().all()
    assert weights[0, 0] == 1
    assert weights[0, 2] < 1


def test_opposite_directions_weigh_nothing_under_the_linear_kernel():
    assert kernel("linear", torch.tensor([[1.5, 1.9]])).tolist() == [[0, 0]]


def test_alpha_0_with_all_experts_is_the_weighted_mean_of_the_neighbours(setting):
    """Equation 4 as it stands."""
    changed, _ = kernel_regression(setting.pathways(core=None), setting.loss(), 0.0)
    for n in range(2):
        weighted = zip(WEIGHT_NK[n], setting.neighbours[n], strict=True)
        total = sum(
            weight * tail.pathway_WME[:, setting.layers] for weight, tail in weighted if tail
        )
        torch.testing.assert_close(changed.probs_NWLE()[n], total / WEIGHT_NK[n].sum())


def test_core_experts_take_the_means_proportions_and_others_keep_theirs(setting):
    pathways = setting.pathways()
    changed, _ = kernel_regression(pathways, setting.loss(), 0.0)
    mean_NWLE = setting.loss().mean_pathway(pathways)
    changed_probs = changed.probs_NWLE()
    clean = pathways.clean_NWLE
    core_NWLC = pathways.to_core(mean_NWLE)[:2]
    torch.testing.assert_close(core_NWLC.sum(-1, keepdim=True), pathways.mass_NWL1[:2])
    core_ratio = changed_probs[:2].gather(-1, pathways.core[:2]) / mean_NWLE[:2].gather(
        -1, pathways.core[:2]
    )
    torch.testing.assert_close(core_ratio, core_ratio[..., :1].expand_as(core_ratio))
    outside = torch.ones_like(clean, dtype=torch.bool).scatter(-1, pathways.core, False)
    assert torch.equal(changed_probs[outside], clean[outside])
    torch.testing.assert_close(changed_probs.sum(-1), torch.ones(changed_probs.shape[:3]))


def test_the_alpha_of_least_loss_is_taken_question_by_question(setting):
    pathways = setting.pathways()
    loss = setting.loss()
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
        NeighbourLoss,
        "value",
        lambda self, pathways, relax: self.reported(torch.full((3,), next(values))),
    )
    with pytest.raises(RoutingError, match="loss is NaN"):
        kernel_regression(olmoe.pathways(), loss, None)


SHIFTS = C3POConfig(optimizer="mode_finding", shifts=30, alpha=0.5, k=4, kernel="gaussian")


def cluster(setting, expert, size, seed):
    """Pathways around one that favours `expert`, [size, 1, M, E]."""
    generator = torch.Generator().manual_seed(seed)
    centre_ME = torch.full(setting.pathway_NWME.shape[2:], 0.02)
    centre_ME[:, expert] = 1
    noise = 0.02 * torch.rand(size, *centre_ME.shape, generator=generator)
    return ((centre_ME + noise) / (centre_ME + noise).sum(-1, keepdim=True))[:, None]


@pytest.fixture
def two_clusters(olmoe):
    return torch.cat([cluster(olmoe, 0, 4, seed=1), cluster(olmoe, 3, 4, seed=2)])


def near(olmoe, expert):
    """Three questions, each a little off the cluster of `expert`."""
    mixed = 0.7 * cluster(olmoe, expert, 3, seed=5) + 0.3 / olmoe.pathway_NWME.shape[-1]
    return mixed / mixed.sum(-1, keepdim=True)


@pytest.mark.parametrize(("expert", "members"), [(0, slice(0, 4)), (3, slice(4, 8))])
def test_a_pathway_ends_in_the_middle_of_the_cluster_it_is_near(
    olmoe, two_clusters, expert, members
):
    wide = dataclasses.replace(SHIFTS, bandwidth=1e6)
    pathways = Pathways(near(olmoe, expert), olmoe.layers, None)
    changed, losses = mode_finding(pathways, olmoe.loss(), two_clusters, wide)
    mean_WLE = two_clusters[members][:, :, olmoe.layers].mean(0)
    for found_WLE in changed.probs_NWLE():
        torch.testing.assert_close(found_WLE, mean_WLE, atol=1e-5, rtol=1e-3)
    assert losses.shape == (31, 3)
    assert losses[:, :2].isfinite().all()


def test_one_shift_is_equations_7_and_8(olmoe, two_clusters):
    pathways = Pathways(near(olmoe, 0), olmoe.layers, None)
    shifts = C3POConfig(
        optimizer="mode_finding", shifts=1, alpha=0.3, k=3, kernel="gaussian", bandwidth=0.1
    )
    changed, _ = mode_finding(pathways, olmoe.loss(), two_clusters, shifts)
    for n in range(3):
        own_WLE = pathways.clean_NWLE[n]
        other_layers = two_clusters[:, :, olmoe.layers]
        away = [
            (own_WLE - other_WLE).square().sum().div(2).sqrt().item() for other_WLE in other_layers
        ]
        nearest = sorted(range(8), key=away.__getitem__)[:3]
        weights = [math.exp(-(away[i] ** 2) / (2 * 0.1**2)) for i in nearest]
        total_WLE = sum(w * other_layers[i] for w, i in zip(weights, nearest, strict=True))
        expected_WLE = 0.3 * own_WLE + 0.7 * total_WLE / sum(weights)
        torch.testing.assert_close(changed.probs_NWLE()[n], expected_WLE, atol=1e-6, rtol=1e-4)


def test_excluded_references_and_those_outside_the_ball_do_not_count(olmoe, two_clusters):
    pathways = Pathways(near(olmoe, 0), olmoe.layers, None)
    first = torch.tensor([True] * 4 + [False] * 4).expand(3, -1)
    wide = dataclasses.replace(SHIFTS, bandwidth=1e6)
    changed, _ = mode_finding(pathways, olmoe.loss(), two_clusters, wide, excluded_NR=first)
    mean_WLE = two_clusters[4:][:, :, olmoe.layers].mean(0)
    torch.testing.assert_close(changed.probs_NWLE()[0], mean_WLE, atol=1e-5, rtol=1e-3)
    small = dataclasses.replace(SHIFTS, epsilon=1e-6)
    changed, _ = mode_finding(pathways, olmoe.loss(), two_clusters, small)
    torch.testing.assert_close(changed.probs_NWLE(), pathways.clean_NWLE)


def test_a_question_without_a_neighbour_is_told_by_half_the_squared_distance(olmoe, two_clusters):
    pathways = Pathways(near(olmoe, 0), olmoe.layers, None)
    nearest_N = distances(pathways.clean_NWLE, two_clusters[:, :, olmoe.layers]).amin(dim=1)
    radius = nearest_N.median().square().item() / 2
    none = torch.zeros(3, 8, dtype=torch.bool)
    shifts = dataclasses.replace(SHIFTS, k=8, epsilon=radius * (1 + 1e-5))
    without_N = without_neighbours(pathways, two_clusters, shifts, none)
    assert without_N.tolist() == (nearest_N > nearest_N.median()).tolist()
    assert without_N.sum() == 1
    changed, _ = mode_finding(pathways, olmoe.loss(), two_clusters, shifts)
    kept_N = (changed.probs_NWLE() - pathways.clean_NWLE).abs().amax(dim=(1, 2, 3)) < 1e-6
    assert kept_N.equal(without_N)
    assert without_neighbours(pathways, two_clusters, SHIFTS, ~none).all()
    assert not without_neighbours(pathways, two_clusters, SHIFTS, none).any()
