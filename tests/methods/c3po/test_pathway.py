"""Pathways. Broken by: probabilities that are no distribution, a change of other layers, tokens or experts than the chosen
ones, experts that are chosen or weighed by other probabilities.
"""

from itertools import product

import pytest
import torch

from moe_lab.engine.scoring import Budget
from moe_lab.engine.token_span import TokenSpan
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.routing import find_routers
from tests.support import rounding
from tests.support.brute_prompt_tail import FAMILIES, RENORMALIZED, prompts
from tests.support.c3po import setting_of
from tests.support.models import small_model
from tests.support.tiers import by_family

N, W, M, E, LAYERS, CORE = 3, 2, 6, 9, [1, 4], 4


@pytest.fixture
def pathway_NWME():
    torch.manual_seed(0)
    return torch.randn(N, W, M, E).mul(2).softmax(dim=-1)


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


def test_tokens_of_a_pass_take_the_pathways_they_are_told(pathway_NWME):
    pathways = Pathways(pathway_NWME, LAYERS, CORE)
    remix = pathways.remix("core", torch.tensor([2, 0, 2]))
    torch.testing.assert_close(remix.probs[4], pathway_NWME[[2, 0, 2], :, 4], atol=1e-7, rtol=1e-5)
    assert torch.equal(remix.experts[4], pathways.core[[2, 0, 2], :, 1])
    assert pathways.remix("topk").experts is None


ANSWER = [17, 4]


def brute_probs(model, ids, start, probs):
    """[V] after each of `ids`, in one pass over all: tokens from `start` on take the experts that are largest in `probs`
    ([W, E] of each layer), weighed by them."""
    renormalizes = model.config.model_type in RENORMALIZED or getattr(model.config, "norm_topk_prob", False)
    handles = []
    for router in find_routers(model):
        if router.layer not in probs:
            continue

        def hook(module, args, output, layer=router.layer):
            logits, weights_TK, index_TK = output
            weights, index = weights_TK.clone(), index_TK.clone()
            for w, probs_E in enumerate(probs[layer]):
                index[start + w] = probs_E.topk(index_TK.shape[-1]).indices
                own = probs_E[index[start + w]]
                weights[start + w] = own / (own.sum() if renormalizes else 1)
            return logits, weights, index

        handles.append(router.module.register_forward_hook(hook))
    try:
        with torch.no_grad():
            return model(torch.tensor([ids]), use_cache=False).logits[0].softmax(-1)
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("span", [TokenSpan(), TokenSpan("first", 2), TokenSpan("last", 3)], ids=str)
@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_scores_are_those_of_the_pathway(family, span):
    setting = setting_of(small_model(family), span)
    asked = prompts(seed=2, least=span.size)[:3]
    tails = setting.tails.read(asked, Budget(64), [[ANSWER]] * 3)
    pathways = setting.pathways()
    torch.manual_seed(1)
    with torch.no_grad():
        pathways.theta += torch.randn_like(pathways.theta)
    found = setting.tails.score(tails, pathways.remix("topk"))
    for n, prompt in enumerate(asked):
        start = span.start(len(prompt))
        probs = {layer: probs_NWE[n].detach() for layer, probs_NWE in pathways.probs().items()}
        whole = brute_probs(setting.model, [*prompt, ANSWER[0]], start, probs)
        expected = whole[len(prompt) - 1, ANSWER[0]].log() + whole[len(prompt), ANSWER[1]].log()
        assert found[n][0][0] == rounding.approx(float(expected))
