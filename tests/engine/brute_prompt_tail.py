"""The slow reference of re-routed last tokens: whole prompts, no cache, a hook that writes one token's weights.

E = experts, C = experts of the re-routed token.
"""

from __future__ import annotations

import torch

from moe_lab.routing import find_routers

RENORMALIZED = {"mixtral", "gpt_oss"}
FAMILIES = ("olmoe", "mixtral", "gpt_oss", "deepseek")
PROMPT_LENGTHS = (30, 5, 1, 17)


def prompts(seed=1):
    """Unlike lengths, one of a single token, two with a common beginning that is read once."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randint(0, 250, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    return [*found, [*found[0][:22], 7, 8, 9]]


def whole_logits(model, ids, at, probs_by_layer, experts_by_layer=None):
    """[tokens, V] of one full pass in which token `at` is routed by these probabilities ([E] of each layer)."""
    kind = model.config.model_type
    handles = []
    for router in find_routers(model):
        if router.layer not in probs_by_layer:
            continue
        probs_E = probs_by_layer[router.layer]
        probs_E = probs_E / probs_E.sum()  # so that gradients are those along distributions

        def hook(module, args, output, layer=router.layer, probs_E=probs_E):
            logits, weights_TK, index_TK = output
            K = index_TK.shape[-1]
            index_C = experts_by_layer[layer] if experts_by_layer else probs_E.topk(K).indices
            own_C = probs_E[index_C]
            if kind in RENORMALIZED or getattr(model.config, "norm_topk_prob", False):
                own_C = own_C / own_C.sum()
            weights_TC = torch.nn.functional.pad(weights_TK, (0, len(index_C) - K))
            index_TC = torch.nn.functional.pad(index_TK, (0, len(index_C) - K))
            here = torch.zeros(len(index_TC), 1, dtype=torch.bool)
            here[at] = True
            return (
                logits,
                torch.where(here, own_C.to(weights_TC.dtype), weights_TC),
                torch.where(here, index_C, index_TC),
            )

        handles.append(router.module.register_forward_hook(hook))
    try:
        return model(torch.tensor([ids]), use_cache=False).logits[0]
    finally:
        for handle in handles:
            handle.remove()
