"""Pathways stay distributions, and only chosen layers and core experts of them change."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from moe_lab.methods.c3po.pathway import Pathways

N, W, M, E, LAYERS, CORE = 3, 2, 6, 9, [1, 4], 4


@pytest.fixture
def pathway_NWME():
    torch.manual_seed(0)
    return torch.randn(N, W, M, E).mul(2).softmax(dim=-1)


def test_initial_parameters_are_the_untouched_pathway(pathway_NWME):
    pathways = Pathways(pathway_NWME, LAYERS, CORE)
    for layer, probs_NWE in pathways.probs().items():
        torch.testing.assert_close(probs_NWE, pathway_NWME[:, :, layer], atol=1e-7, rtol=1e-5)
    assert list(pathways.probs()) == LAYERS and pathways.theta.shape == (N, W, 2, CORE)


def test_core_experts_are_the_largest_by_the_models_own_weights(pathway_NWME):
    core_NWLC = Pathways(pathway_NWME, LAYERS, CORE).core
    for n, w, (i, layer) in product(range(N), range(W), enumerate(LAYERS)):
        expected = sorted(range(E), key=lambda e: -pathway_NWME[n, w, layer, e])[:CORE]
        assert core_NWLC[n, w, i].tolist() == expected


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
        found, clean, core = pathways.probs()[layer], pathway_NWME[:, :, layer], pathways.core[:, :, i]
        torch.testing.assert_close(found.sum(-1), torch.ones(N, W))
        torch.testing.assert_close(found.gather(-1, core).sum(-1), clean.gather(-1, core).sum(-1))
        outside = torch.ones(N, W, E, dtype=torch.bool).scatter(-1, core, False)
        assert torch.equal(found[outside], clean[outside])
        assert (found.gather(-1, core) - clean.gather(-1, core)).abs().min() > 1e-4


def test_other_pathways_are_scaled_to_the_cores_mass(pathway_NWME):
    pathways = Pathways(pathway_NWME, LAYERS, CORE)
    other_NWLE = torch.rand(N, W, 2, E)
    core_NWLC = pathways.to_core(other_NWLE)
    torch.testing.assert_close(core_NWLC.sum(-1, keepdim=True), pathways.mass_NWL1)
    ratio = core_NWLC / other_NWLE.gather(-1, pathways.core)
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))
    pathways.set_core(core_NWLC)
    torch.testing.assert_close(pathways.core_probs(), core_NWLC)


def test_an_expert_of_probability_0_can_be_in_the_core():
    pathway_NWME = torch.tensor([[[[0.75, 0.25, 0.0]]]])
    pathways = Pathways(pathway_NWME, [0], 3)
    probs_NWE = pathways.probs()[0]
    torch.testing.assert_close(probs_NWE, pathway_NWME[:, :, 0])
    (gradient,) = torch.autograd.grad(probs_NWE[0, 0, 0], [pathways.theta])
    assert gradient.isfinite().all()


def test_a_copy_has_parameters_of_its_own(pathway_NWME):
    pathways = Pathways(pathway_NWME, LAYERS, CORE)
    copy = pathways.copy()
    with torch.no_grad():
        copy.theta += 1 + torch.arange(CORE)
    torch.testing.assert_close(pathways.probs()[4], pathway_NWME[:, :, 4], atol=1e-7, rtol=1e-5)
    assert copy.theta.is_leaf and copy.theta.requires_grad


def test_tokens_of_a_pass_take_the_pathways_they_are_told(pathway_NWME):
    pathways = Pathways(pathway_NWME, LAYERS, CORE)
    remix = pathways.remix("core", torch.tensor([2, 0, 2]))
    torch.testing.assert_close(remix.probs[4], pathway_NWME[[2, 0, 2], :, 4], atol=1e-7, rtol=1e-5)
    assert torch.equal(remix.experts[4], pathways.core[[2, 0, 2], :, 1])
    assert pathways.remix("topk").experts is None
