"""Noise around optimized pathways. Broken by: noise at another layer, token or row, weights that have noise in them,
probabilities that are not averaged, rows without noise that differ.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab.engine.scoring.scoring import Budget
from moe_lab.engine.suffix.token_span import TokenSpan
from moe_lab.methods.c3po.noisy_pathways import samples_around
from moe_lab.routing.noise import gumbel
from tests.support import rounding
from tests.support.brute_prompt_tail import FAMILIES, RENORMALIZED, prompts
from tests.support.c3po import setting_of
from tests.support.models import small_model
from tests.support.tiers import by_family

DOCUMENTS = [5, -7, 99]
SEED = 3
ANSWER = [17, 4]


def brute_probs(model, ids, start, chosen_by, weighed_by):
    """[V] after the last of `ids`, in one pass over all: tokens from `start` on take the experts that are largest in
    `chosen_by` ([W, E] of each layer), weighed by `weighed_by`."""
    renormalizes = model.config.model_type in RENORMALIZED or getattr(model.config, "norm_topk_prob", False)
    from moe_lab.routing import find_routers

    handles = []
    for router in find_routers(model):
        if router.layer not in chosen_by:
            continue

        def hook(module, args, output, layer=router.layer):
            logits, weights_TK, index_TK = output
            weights, index = weights_TK.clone(), index_TK.clone()
            for w, (scores_E, probs_E) in enumerate(zip(chosen_by[layer], weighed_by[layer], strict=True)):
                index[start + w] = scores_E.topk(index_TK.shape[-1]).indices
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
def test_scores_are_the_mean_of_rows_with_keyed_noise(family, span):
    setting = setting_of(small_model(family), span)
    asked = prompts(seed=2, least=span.size)[:3]
    tails = setting.tails.read(asked, Budget(64), [[ANSWER]] * 3)
    pathways = setting.pathways()
    torch.manual_seed(1)
    with torch.no_grad():
        pathways.theta += torch.randn_like(pathways.theta)
    rows = samples_around(pathways, tails, DOCUMENTS, n=3, temperature=0.7, seed=SEED)
    found = setting.tails.score(tails, *rows)
    for n, prompt in enumerate(asked):
        start = span.start(len(prompt))
        probs = {layer: probs_NWE[n].detach() for layer, probs_NWE in pathways.probs().items()}
        mean = 0
        for row in range(3):
            chosen_by = {}
            for layer, probs_WE in probs.items():
                positions = torch.arange(start, start + span.size)
                noise = gumbel(SEED, DOCUMENTS[n], 0, row, layer, positions, probs_WE.shape[-1]) if row else 0
                chosen_by[layer] = probs_WE.log() + 0.7 * noise
            whole = brute_probs(setting.model, [*prompt, ANSWER[0]], start, chosen_by, probs)
            mean = mean + whole / 3
        expected = mean[len(prompt) - 1, ANSWER[0]].log() + mean[len(prompt), ANSWER[1]].log()
        assert found[n][0][0] == rounding.approx(float(expected))


def test_without_noise_rows_are_one(olmoe):
    tails = olmoe.tails.read(prompts(seed=2)[:3], Budget(64), [[ANSWER]] * 3)
    pathways = olmoe.pathways()
    one = olmoe.tails.score(tails, pathways.remix("topk"))
    for n, temperature in ((1, 5.0), (4, 0.0)):
        rows = samples_around(pathways, tails, DOCUMENTS, n=n, temperature=temperature, seed=SEED)
        again = olmoe.tails.score(tails, *rows)
        assert [score for [(score, _)] in again] == rounding.approx([score for [(score, _)] in one])
    assert len(samples_around(pathways, tails, DOCUMENTS, n=4, temperature=1.0, seed=0)) == 4
