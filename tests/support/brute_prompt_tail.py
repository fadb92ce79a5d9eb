"""The slow reference of re-routed tokens: whole prompts, no cache, a hook that writes their weights.

W = re-routed tokens, K = the router's experts, E = experts, C = experts of the re-routed tokens.
"""

from __future__ import annotations

import torch

from moe_lab.routing import find_routers

RENORMALIZED = {"mixtral", "gpt_oss"}
FAMILIES = ("olmoe", "mixtral", "gpt_oss", "deepseek")
PROMPT_LENGTHS = (30, 5, 1, 17)


def prompts(seed=1, least=1):
    """Unlike lengths, one of a single token (or of `least`), two with a common beginning that may be read once."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [max(length, least) for length in PROMPT_LENGTHS]
    found = [torch.randint(0, 250, (length,), generator=generator).tolist() for length in lengths]
    return [*found, [*found[0][:22], 7, 8, 9]]


def whole_logits(model, ids, start, probs_by_layer, experts_by_layer=None):
    """[tokens, V] of one full pass in which the tokens from `start` on are routed by these probabilities ([W, E] of each
    layer), by the largest of them or by given experts ([W, C])."""
    kind = model.config.model_type
    handles = []
    for router in find_routers(model):
        if router.layer not in probs_by_layer:
            continue
        probs_WE = probs_by_layer[router.layer]
        probs_WE = probs_WE / probs_WE.sum(
            -1, keepdim=True
        )  # so that gradients are those along distributions

        def hook(module, args, output, layer=router.layer, probs_WE=probs_WE):
            logits, weights_TK, index_TK = output
            K = index_TK.shape[-1]
            index_WC = experts_by_layer[layer] if experts_by_layer else probs_WE.topk(K).indices
            weights, index = [], []
            for t in range(len(index_TK)):
                own_C, experts_C = weights_TK[t], index_TK[t]
                if start <= t < start + len(probs_WE):
                    experts_C = index_WC[t - start]
                    own_C = probs_WE[t - start, experts_C]
                    if kind in RENORMALIZED or getattr(model.config, "norm_topk_prob", False):
                        own_C = own_C / own_C.sum()
                room = index_WC.shape[-1] - len(own_C)
                weights.append(torch.nn.functional.pad(own_C.to(weights_TK.dtype), (0, room)))
                index.append(torch.nn.functional.pad(experts_C, (0, room)))
            return logits, torch.stack(weights), torch.stack(index)

        handles.append(router.module.register_forward_hook(hook))
    try:
        return model(torch.tensor([ids]), use_cache=False).logits[0]
    finally:
        for handle in handles:
            handle.remove()
