"""A policy that reads all that it is told of its tokens, and the same decisions of one text at a
time, by the documented keys and without `tokens`.

Passes are transformers' own, in float64, without cache, batch or padding.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from moe_lab.routing import Router, Routing, document_key, gumbel
from moe_lab.routing.override import override
from moe_lab.routing.tokens import PolicyTokens
from tests.support.slow_routing import slow_hash

SCALE = 2.0
"""Of the noise: most decisions change."""


def told(router: Router, routing: Routing, tokens: PolicyTokens) -> Routing:
    """Gumbel noise in even layers and uniform noise in odd ones; new tokens have other weights."""
    if router.layer % 2:
        noise_TE = tokens.uniform(router)
    else:
        noise_TE = tokens.gumbel(router)
    return _decided(router, routing, noise_TE, tokens.new_T)


def _decided(router: Router, routing: Routing, noise_TE: Tensor, new_T: Tensor) -> Routing:
    scores_TE = router.scores(routing.logits_TE) + SCALE * noise_TE
    index_TK = router.choose(scores_TE, routing.index_TK.shape[-1])
    weights_TK = router.weights(routing.logits_TE, index_TK)
    factor_T = 1.0 - 0.5 * new_T
    return routing._replace(
        index_TK=index_TK, weights_TK=weights_TK * factor_T[:, None].to(weights_TK)
    )


def uniform_by_hand(seed: int, document: int, repeat: int, row: int, layer: int, E: int, T: int):
    """float32 [T, E], by Python's unbounded integers."""
    rows = []
    for position in range(T):
        numbers = []
        for expert in range(E):
            k = slow_hash(seed, document, repeat, row, layer, position, expert) >> 11
            numbers.append(((k >> 30) + 0.5) / 2**23)
        rows.append(numbers)
    return torch.tensor(rows, dtype=torch.float32)


def logits_by_hand(
    model64: Any,
    prompt: Sequence[int],
    ids: Sequence[int],
    seed: int,
    repeat: int = 0,
    rows: Sequence[int] | None = None,
    document: int | None = None,
    shared_layers: int = 0,
) -> Tensor:
    """float64 [S, V] of one pass over `ids`, which begin with the prompt.

    Args:
        rows: the routing sample of each token; None: 0.
        document: the key of the text; None: that of the prompt.
        shared_layers: MoE layers before the samples fork, where each token has row 0.
    """
    if rows is None:
        rows = [0] * len(ids)
    if document is None:
        document = document_key(prompt)

    def decide(router: Router, routing: Routing) -> Routing:
        T, E = routing.logits_TE.shape
        noise_TE = torch.zeros(T, E)
        rows_of_layer = [0] * T if router.layer < shared_layers else rows
        for row in set(rows_of_layer):
            keys = (seed, document, repeat, row, router.layer)
            if router.layer % 2:
                noise_of_row = uniform_by_hand(*keys, E, T)
            else:
                noise_of_row = gumbel(*keys, range(T), E)
            is_row_T = torch.tensor(rows_of_layer) == row
            noise_TE[is_row_T] = noise_of_row[is_row_T]
        return _decided(router, routing, noise_TE, torch.arange(T) >= len(prompt))

    with torch.no_grad(), override(model64, decide):
        return model64(torch.tensor([list(ids)]), use_cache=False).logits[0].double()


def score_by_hand(
    model64: Any,
    context: Sequence[int],
    continuation: Sequence[int],
    seed: int,
    document: int | None = None,
) -> tuple[float, bool]:
    """(log-likelihood, whether greedy) of a continuation."""
    ids = [*context, *continuation]
    logits_SV = logits_by_hand(model64, context, ids, seed, document=document)
    log_probs_SV = logits_SV.log_softmax(-1)
    log_probs_CV = log_probs_SV[len(context) - 1 : -1]
    total = math.fsum(float(log_probs_CV[i, token]) for i, token in enumerate(continuation))
    return total, log_probs_CV.argmax(-1).tolist() == list(continuation)


def generate_by_hand(
    model64: Any, prompt: Sequence[int], steps: int, seed: int, repeat: int = 0
) -> list[int]:
    """Greedy new tokens."""
    ids = list(prompt)
    for _ in range(steps):
        logits_V = logits_by_hand(model64, prompt, ids, seed, repeat)[-1]
        ids.append(int(logits_V.argmax()))
    return ids[len(prompt) :]
