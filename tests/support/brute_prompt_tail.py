"""The slow reference of re-routed tokens: whole prompts, no cache, a hook
that writes their weights.

W = re-routed tokens, K = the router's experts, E = experts, C = experts of the re-routed tokens.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from moe_lab.routing import find_routers

RENORMALIZED = {"mixtral", "gpt_oss"}
FAMILIES = ("olmoe", "mixtral", "gpt_oss", "deepseek")
PROMPT_LENGTHS = (30, 5, 1, 17)

Decision = tuple[Tensor, Tensor | None]
"""The probabilities [E] and the experts [C] of a token; None: the experts of the largest."""


def prompts(seed: int = 1, least: int = 1) -> list[list[int]]:
    """Prompts of different lengths: one has a single token (or `least` tokens), two share
    a beginning that may be read once."""
    generator = torch.Generator().manual_seed(seed)
    all_prompts = []
    for length in PROMPT_LENGTHS:
        ids = torch.randint(0, 250, (max(length, least),), generator=generator)
        all_prompts.append(ids.tolist())
    beginning = all_prompts[0][:22]
    return [*all_prompts, [*beginning, 7, 8, 9]]


def routed_logits(
    model: Any,
    ids: list[int],
    layers: Iterable[int],
    decide: Callable[[int, int, Tensor], Decision | None],
) -> Tensor:
    """[tokens, V] of one full pass.

    `decide(layer, t, logits_E)` says how token t is routed in one of these layers; the model's own
    routing where it returns None.
    """
    handles = []
    for router in find_routers(model):
        if router.layer not in layers:
            continue

        def route(module: Any, args: Any, output: Any, layer: int = router.layer) -> Any:
            logits_TE, weights_TK, index_TK = output
            weights = []
            experts = []
            for t, logits_E in enumerate(logits_TE):
                decision = decide(layer, t, logits_E)
                if decision is None:
                    weights.append(weights_TK[t])
                    experts.append(index_TK[t])
                    continue
                probs_E, experts_C = decision
                if experts_C is None:
                    experts_C = probs_E.topk(index_TK.shape[-1]).indices
                weights_C = probs_E[experts_C]
                if renormalizes(model):
                    weights_C = weights_C / weights_C.sum()
                weights.append(weights_C.to(weights_TK.dtype))
                experts.append(experts_C)
            return logits_TE, padded(weights), padded(experts)

        handles.append(router.module.register_forward_hook(route))
    try:
        return model(torch.tensor([ids]), use_cache=False).logits[0]
    finally:
        for handle in handles:
            handle.remove()


def renormalizes(model: Any) -> bool:
    """Whether the weights of a token's experts have the sum 1."""
    if model.config.model_type in RENORMALIZED:
        return True
    return getattr(model.config, "norm_topk_prob", False)


def padded(rows: list[Tensor]) -> Tensor:
    """Rows of different lengths as one tensor, with zeros at their ends:
    expert 0 with the weight 0."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def whole_logits(
    model: Any,
    ids: list[int],
    start: int,
    probs_by_layer: Mapping[int, Sequence[Tensor]],
    experts_by_layer: Mapping[int, Sequence[Tensor]] | None = None,
) -> Tensor:
    """[tokens, V] of one full pass in which the tokens from `start` on are routed by these
    probabilities ([W, E] of each layer), by the largest of them or by given experts ([W, C])."""

    def decide(layer: int, t: int, logits_E: Tensor) -> Decision | None:
        number = t - start
        if not 0 <= number < len(probs_by_layer[layer]):
            return None
        # divided so that gradients are those along distributions
        probs_E = probs_by_layer[layer][number]
        probs_E = probs_E / probs_E.sum()
        if experts_by_layer is None:
            return probs_E, None
        return probs_E, experts_by_layer[layer][number]

    return routed_logits(model, ids, probs_by_layer, decide)
