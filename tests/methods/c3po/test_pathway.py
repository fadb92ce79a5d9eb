"""Pathways stay distributions, and only chosen layers and core experts of them change."""

from __future__ import annotations

import pytest
import torch

from moe_lab.methods.c3po.pathway import Pathways

N, M, E, LAYERS, CORE = 3, 6, 9, [1, 4], 4


@pytest.fixture
def pathway_NME():
    torch.manual_seed(0)
    return torch.randn(N, M, E).mul(2).softmax(dim=-1)


def test_initial_parameters_are_the_untouched_pathway(pathway_NME):
    pathways = Pathways(pathway_NME, LAYERS, CORE)
    for layer, probs_NE in pathways.probs().items():
        torch.testing.assert_close(probs_NE, pathway_NME[:, layer], atol=1e-7, rtol=1e-5)
    assert list(pathways.probs()) == LAYERS and pathways.theta.shape == (N, 2, CORE)


def test_core_experts_are_the_largest_by_the_models_own_weights(pathway_NME):
    core_NLC = Pathways(pathway_NME, LAYERS, CORE).core
    for n in range(N):
        for i, layer in enumerate(LAYERS):
            expected = sorted(range(E), key=lambda e: -pathway_NME[n, layer, e])[:CORE]
            assert core_NLC[n, i].tolist() == expected


@pytest.mark.parametrize("core_experts", [None, E, 100])
def test_all_experts_are_the_core_where_there_are_no_more(pathway_NME, core_experts):
    pathways = Pathways(pathway_NME, LAYERS, core_experts)
    assert pathways.theta.shape[-1] == E
    torch.testing.assert_close(pathways.mass_NL1, torch.ones(N, 2, 1))


def test_changed_parameters_change_core_experts_alone_and_keep_their_mass(pathway_NME):
    pathways = Pathways(pathway_NME, LAYERS, CORE)
    with torch.no_grad():
        pathways.theta += torch.randn(pathways.theta.shape)
    for i, layer in enumerate(LAYERS):
        found, clean, core = pathways.probs()[layer], pathway_NME[:, layer], pathways.core[:, i]
        torch.testing.assert_close(found.sum(-1), torch.ones(N))
        torch.testing.assert_close(found.gather(-1, core).sum(-1), clean.gather(-1, core).sum(-1))
        outside = torch.ones(N, E, dtype=torch.bool).scatter(-1, core, False)
        assert torch.equal(found[outside], clean[outside])
        assert (found.gather(-1, core) - clean.gather(-1, core)).abs().min() > 1e-4


def test_other_pathways_are_scaled_to_the_cores_mass(pathway_NME):
    pathways = Pathways(pathway_NME, LAYERS, CORE)
    other_NLE = torch.rand(N, 2, E)
    core_NLC = pathways.to_core(other_NLE)
    torch.testing.assert_close(core_NLC.sum(-1, keepdim=True), pathways.mass_NL1)
    ratio = core_NLC / other_NLE.gather(-1, pathways.core)
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))
    pathways.set_core(core_NLC)
    torch.testing.assert_close(pathways.core_probs(), core_NLC)


def test_an_expert_of_probability_0_can_be_in_the_core():
    pathway_NME = torch.tensor([[[0.75, 0.25, 0.0]]])
    pathways = Pathways(pathway_NME, [0], 3)
    probs_NE = pathways.probs()[0]
    torch.testing.assert_close(probs_NE, pathway_NME[:, 0])
    (gradient,) = torch.autograd.grad(probs_NE[0, 0], [pathways.theta])
    assert gradient.isfinite().all()


def test_a_copy_has_parameters_of_its_own(pathway_NME):
    pathways = Pathways(pathway_NME, LAYERS, CORE)
    copy = pathways.copy()
    with torch.no_grad():
        copy.theta += 1 + torch.arange(CORE)
    torch.testing.assert_close(pathways.probs()[4], pathway_NME[:, 4], atol=1e-7, rtol=1e-5)
    assert copy.theta.is_leaf and copy.theta.requires_grad


def test_tokens_of_a_pass_take_the_pathways_they_are_told(pathway_NME):
    pathways = Pathways(pathway_NME, LAYERS, CORE)
    remix = pathways.remix("core", torch.tensor([2, 0, 2]))
    torch.testing.assert_close(remix.probs[4], pathway_NME[[2, 0, 2], 4], atol=1e-7, rtol=1e-5)
    assert torch.equal(remix.experts[4], pathways.core[[2, 0, 2], 1])
    assert pathways.remix("topk").experts is None
