"""Mode finding on constructed pathways: two clusters, whose centres are known."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from moe_lab.methods.c3po.mode_finding import Shifts, distances, mode_finding, without_neighbours
from moe_lab.methods.c3po.pathway import Pathways
from tests.support.c3po import CORE

SHIFTS = Shifts(count=30, alpha=0.5, k=4, kernel="gaussian")


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
def test_a_pathway_ends_in_the_middle_of_the_cluster_it_is_near(olmoe, two_clusters, expert, members):
    wide = dataclasses.replace(SHIFTS, bandwidth=1e6)
    pathways = Pathways(near(olmoe, expert), olmoe.layers, None)
    changed, losses = mode_finding(pathways, olmoe.loss(), two_clusters, wide)
    mean_WLE = two_clusters[members][:, :, olmoe.layers].mean(0)
    for found_WLE in changed.probs_NWLE():
        torch.testing.assert_close(found_WLE, mean_WLE, atol=1e-5, rtol=1e-3)
    assert losses.shape == (31, 3) and losses[:, :2].isfinite().all()


def test_a_mode_stays(olmoe, two_clusters):
    """All neighbours in one place, which is the question's own."""
    same = two_clusters[:1].expand(4, -1, -1, -1)
    pathways = Pathways(same[:3], olmoe.layers, CORE)
    changed, losses = mode_finding(pathways, olmoe.loss(), same, SHIFTS)
    torch.testing.assert_close(changed.probs_NWLE(), pathways.clean_NWLE)
    torch.testing.assert_close(losses[-1, :2], losses[0, :2])


def test_one_shift_is_equations_7_and_8(olmoe, two_clusters):
    pathways = Pathways(near(olmoe, 0), olmoe.layers, None)
    shifts = Shifts(count=1, alpha=0.3, k=3, kernel="gaussian", bandwidth=0.1)
    changed, _ = mode_finding(pathways, olmoe.loss(), two_clusters, shifts)
    for n in range(3):
        own_WLE = pathways.clean_NWLE[n]
        away = [
            (own_WLE - other[:, olmoe.layers]).square().sum().div(2).sqrt().item() for other in two_clusters
        ]
        nearest = sorted(range(8), key=away.__getitem__)[:3]
        weights = [math.exp(-(away[i] ** 2) / (2 * 0.1**2)) for i in nearest]
        mean_WLE = sum(
            w * two_clusters[i][:, olmoe.layers] for w, i in zip(weights, nearest, strict=True)
        ) / sum(weights)
        torch.testing.assert_close(
            changed.probs_NWLE()[n], 0.3 * own_WLE + 0.7 * mean_WLE, atol=1e-6, rtol=1e-4
        )


@pytest.mark.parametrize(("alpha", "count"), [(1.0, 5), (0.5, 0)])
def test_alpha_1_or_no_shifts_change_nothing(olmoe, two_clusters, alpha, count):
    pathways = olmoe.pathways()
    shifts = Shifts(count=count, alpha=alpha)
    changed, _ = mode_finding(pathways, olmoe.loss(), two_clusters, shifts)
    torch.testing.assert_close(changed.probs_NWLE(), pathways.clean_NWLE)


def test_only_core_experts_change(olmoe, two_clusters):
    pathways = olmoe.pathways()
    changed, _ = mode_finding(pathways, olmoe.loss(), two_clusters, SHIFTS)
    outside = torch.ones_like(pathways.clean_NWLE, dtype=torch.bool).scatter(-1, pathways.core, False)
    assert torch.equal(changed.probs_NWLE()[outside], pathways.clean_NWLE[outside])
    moved = changed.core_probs() - pathways.core_probs()
    assert moved.abs().amax(dim=-1).min() > 1e-3


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


def test_distances_are_like_those_of_unit_vectors():
    one, other = torch.eye(4)[0].expand(1, 2, 3, 4), torch.eye(4)[1].expand(1, 2, 3, 4)
    found = distances(one, torch.cat([one, other]))
    torch.testing.assert_close(found, torch.tensor([[0.0, math.sqrt(2)]]))


def test_a_question_without_a_neighbour_is_told_by_half_the_squared_distance(olmoe, two_clusters):
    pathways = Pathways(near(olmoe, 0), olmoe.layers, None)
    nearest_N = distances(pathways.clean_NWLE, two_clusters[:, :, olmoe.layers]).amin(dim=1)
    radius = nearest_N.median().square().item() / 2
    none = torch.zeros(3, 8, dtype=torch.bool)
    shifts = dataclasses.replace(SHIFTS, k=8, epsilon=radius * (1 + 1e-5))
    without_N = without_neighbours(pathways, two_clusters, shifts, none)
    assert without_N.tolist() == (nearest_N > nearest_N.median()).tolist() and without_N.sum() == 1
    changed, _ = mode_finding(pathways, olmoe.loss(), two_clusters, shifts)
    kept_N = (changed.probs_NWLE() - pathways.clean_NWLE).abs().amax(dim=(1, 2, 3)) < 1e-6
    assert kept_N.equal(without_N)
    assert without_neighbours(pathways, two_clusters, SHIFTS, ~none).all()
    assert not without_neighbours(pathways, two_clusters, SHIFTS, none).any()
