"""Generation with re-routed tokens equals whole passes, one prompt at a time, without a cache.

Broken by: a pathway given to another prompt's tokens or to padding, one that ends too early or too late, a share that is
not the token's own rest.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab.engine.generation.generate import generate
from moe_lab.engine.generation.prefill import GenerationState
from moe_lab.engine.generation.sampling import Decoding, Sampler, generation_config
from moe_lab.engine.scoring.scoring import Budget
from moe_lab.engine.suffix.rerouted_generation import PERSISTENCE, ReroutedForward
from moe_lab.engine.suffix.token_span import TokenSpan
from moe_lab.errors import RoutingError
from moe_lab.routing import document_key, find_routers, routed
from moe_lab.routing.override import Override
from tests.support.brute_prompt_tail import FAMILIES, RENORMALIZED, prompts
from tests.support.models import small_model
from tests.support.tiers import by_family

STEPS = 5
SPANS = [TokenSpan(), TokenSpan("first", 1), TokenSpan("middle", 3), TokenSpan("last", 3)]


def pathways(model, count, span, seed=3):
    """Other probabilities for each prompt and token, in the later layers."""
    torch.manual_seed(seed)
    layers = [router.layer for router in find_routers(model)][-2:]
    experts = model.config.get_text_config().num_experts if hasattr(model.config, "num_experts") else None
    experts = experts or getattr(model.config, "num_local_experts", None) or model.config.n_routed_experts
    return {layer: torch.rand(count, span.size, experts).mul(3).softmax(-1) for layer in layers}


def share_of(position, length, span, persistence):
    """(which pathway, its share) of a token, from the definition."""
    start = span.start(length)
    if position < length:
        return (position - start, 1.0) if start <= position < start + span.size else None
    new = position - length + 1
    share = {"prompt_last": 0.0, "all_new": 1.0, "decay": 0.5**new}[persistence]
    return (span.size - 1, share) if share else None


def brute_logits(model, ids, length, probs, span, persistence):
    """After the last of these tokens, in one pass over all of them."""
    renormalizes = model.config.model_type in RENORMALIZED or getattr(model.config, "norm_topk_prob", False)
    handles = []
    for router in find_routers(model):
        if router.layer not in probs:
            continue

        def hook(module, args, output, layer=router.layer):
            logits_TE, weights_TK, index_TK = output
            weights, index = weights_TK.clone(), index_TK.clone()
            for t in range(len(ids)):
                found = share_of(t, length, span, persistence)
                if found:
                    w, share = found
                    mixed_E = share * probs[layer][w] + (1 - share) * logits_TE[t].float().softmax(-1)
                    chosen = mixed_E.topk(index_TK.shape[-1])
                    own = chosen.values / (chosen.values.sum() if renormalizes else 1)
                    weights[t], index[t] = own.to(weights.dtype), chosen.indices
            return logits_TE, weights, index

        handles.append(router.module.register_forward_hook(hook))
    try:
        with torch.no_grad():
            return model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("persistence", PERSISTENCE)
@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_generated_tokens_are_those_of_whole_passes(family, span, persistence):
    model = small_model(family)
    asked = prompts(least=span.size)
    probs = pathways(model, len(asked), span)
    answers = [GenerationState(i, prompt, document_key(prompt)) for i, prompt in enumerate(asked)]
    seen = {}

    def choose(scores_AV, going):
        for scores_V, answer in zip(scores_AV, going, strict=True):
            seen[answer.index, len(answer.generated)] = scores_V
        return decoder(scores_AV, going)

    decoder = Sampler(model, generation_config(model, {}), 0)
    budget = Budget(64)
    with ReroutedForward(model, answers, probs, span, persistence) as forward:
        generate(
            forward, answers, budget, Decoding(choose, lambda generated: False, STEPS), lambda answer: None
        )
    for n, answer in enumerate(answers):
        own = {layer: probs_NWE[n] for layer, probs_NWE in probs.items()}
        for step in range(STEPS):
            ids = [*answer.prompt, *answer.generated[:step]]
            expected = brute_logits(model, ids, len(answer.prompt), own, span, persistence)
            assert torch.allclose(seen[n, step], expected.float(), atol=2e-5), (n, step)


def test_persistence_matters():
    """Else the checks above could compare the same thing three times."""
    model, span = small_model("olmoe"), TokenSpan()
    ids = prompts()[0]
    probs = {layer: probs_NWE[0] for layer, probs_NWE in pathways(model, 1, span).items()}
    found = [brute_logits(model, ids, 20, probs, span, persistence) for persistence in PERSISTENCE]
    assert not torch.allclose(found[0], found[1], atol=1e-3)
    assert not torch.allclose(found[1], found[2], atol=1e-3)


def test_a_policy_that_was_told_of_no_token_raises(olmoe):
    probs = {2: torch.full((1, 1, 8), 1 / 8)}
    with pytest.raises(RoutingError, match="told of no token"), routed(olmoe, Override(probs)):
        olmoe(torch.tensor([[1, 2]]))
