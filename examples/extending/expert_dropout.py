"""Expert dropout, a sampling policy on one page: n routing samples of each token are averaged.

In each sample but the first, each of a token's k experts is dropped with probability p, and the
router's next best expert takes its place.

    python -m moe_lab method=policy method.policy=expert_dropout.py:expert_dropout method.n=8
"""

import torch

from moe_lab.routing import PolicyTokens, Router, Routing


def expert_dropout(
    router: Router, routing: Routing, tokens: PolicyTokens, p: float = 0.1
) -> Routing:
    chosen_TE = torch.zeros_like(routing.logits_TE, dtype=torch.bool)
    chosen_TE = chosen_TE.scatter(-1, routing.index_TK, True)
    dropped_TE = chosen_TE & (tokens.uniform(router) < p)

    scores_TE = router.scores(routing.logits_TE).masked_fill(dropped_TE, -torch.inf)
    index_TK = router.choose(scores_TE, routing.index_TK.shape[-1])
    weights_TK = router.weights(routing.logits_TE, index_TK)
    return routing._replace(index_TK=index_TK, weights_TK=weights_TK)
