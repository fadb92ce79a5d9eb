"""The slow reference of re-routed tokens: whole prompts, no cache, a hook that writes their weights.

W = re-routed tokens, K = the router's experts, E = experts, C = experts of the re-routed tokens.
"""

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


def routed_logits(model, ids, layers, decide):
    """[tokens, V] of one full pass.

    `decide(layer, t, logits_E)` says how token t is routed in one of these layers: its probabilities [E] and its experts
    [C], or the largest of them where these are None; the model's own routing where it returns None.
    """
    renormalizes = model.config.model_type in RENORMALIZED or getattr(
        model.config, "norm_topk_prob", False
    )
    handles = []
    for router in find_routers(model):
        if router.layer not in layers:
            continue

        def hook(module, args, output, layer=router.layer):
            logits_TE, weights_TK, index_TK = output
            rows = []
            for t, logits_E in enumerate(logits_TE):
                weights_C, index_C = weights_TK[t], index_TK[t]
                if decided := decide(layer, t, logits_E):
                    probs_E, experts_C = decided
                    index_C = (
                        probs_E.topk(index_TK.shape[-1]).indices if experts_C is None else experts_C
                    )
                    weights_C = probs_E[index_C] / (probs_E[index_C].sum() if renormalizes else 1)
                rows.append((weights_C.to(weights_TK.dtype), index_C))
            width = max(len(index_C) for _, index_C in rows)
            pad = lambda row_C: torch.nn.functional.pad(row_C, (0, width - len(row_C)))  # noqa: E731
            return logits_TE, *(torch.stack([pad(row[part]) for row in rows]) for part in (0, 1))

        handles.append(router.module.register_forward_hook(hook))
    try:
        return model(torch.tensor([ids]), use_cache=False).logits[0]
    finally:
        for handle in handles:
            handle.remove()


def whole_logits(model, ids, start, probs_by_layer, experts_by_layer=None):
    """[tokens, V] of one full pass in which the tokens from `start` on are routed by these probabilities ([W, E] of each
    layer), by the largest of them or by given experts ([W, C])."""

    def decide(layer, t, logits_E):
        if not 0 <= t - start < len(probs_by_layer[layer]):
            return None
        # divided so that gradients are those along distributions
        probs_E = probs_by_layer[layer][t - start]
        return probs_E / probs_E.sum(), experts_by_layer[layer][
            t - start
        ] if experts_by_layer else None

    return routed_logits(model, ids, probs_by_layer, decide)
