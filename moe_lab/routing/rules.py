"""The parts of a model family: rules from router logits to experts and weights, and seams.

A few rules serve all families. Noise is added to the scores by which a router chooses. Softmax
routers choose by their logits (a softmax keeps the order), so noise is added to the logits, as in
the RoE paper. Other routers choose by a sigmoid, or by a probability plus a learned bias, and noise
is added there. Combine weights are computed from the clean logits at the chosen experts.

A seam is a set of hooks by which a policy reads and changes a router's decision. Most routers
return (logits, weights, indices), which `routed` hooks itself. Each other form of router output has
a seam here.

T = tokens, E = experts, G = groups of experts, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from moe_lab.routing.transient import TransientHook


class Routing(NamedTuple):
    """A router's decision for T tokens."""

    logits_TE: Tensor
    weights_TK: Tensor
    index_TK: Tensor

    def changed(self, at_N: Tensor, weights_NK: Tensor, index_NK: Tensor) -> Routing:
        """The decision with other weights and experts for the tokens `at_N` (int64)."""
        weights_TK = self.weights_TK.index_copy(0, at_N, weights_NK.to(self.weights_TK.dtype))
        return Routing(self.logits_TE, weights_TK, self.index_TK.index_copy(0, at_N, index_NK))


Decide = Callable[[Routing], Routing | None]
"""Called with a decision. Returns another one, or None for no change."""
Seam = Callable[[nn.Module, Decide], list[Any]]
"""(router, decide) -> handles of the installed hooks."""


def llama4(router: nn.Module, decide: Decide) -> list[Any]:
    """Llama-4: (weights of all experts, 0 for experts not chosen; logits)."""

    def hook(
        module: Any, args: tuple, output: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        weights_TE, logits_TE = output
        # another policy may have chosen otherwise
        index_TK = weights_TE.topk(module.top_k, dim=-1).indices
        changed = decide(Routing(logits_TE, weights_TE.gather(-1, index_TK), index_TK))
        if changed is None:
            return None
        no_weights_TE = torch.zeros_like(weights_TE)
        changed_weights_TE = no_weights_TE.scatter(-1, changed.index_TK, changed.weights_TK)
        return changed_weights_TE, changed.logits_TE

    return [router.register_forward_hook(TransientHook(hook))]


def jetmoe(router: nn.Module, decide: Decide) -> list[Any]:
    """JetMoE: (order of the T x K pairs by expert, token of each, weight of each, pairs per expert,
    logits)."""

    def hook(module: Any, args: tuple, output: tuple) -> tuple | None:
        order, _, weights, counts, logits_TE = output
        T, E = logits_TE.shape
        count_E = torch.tensor(counts, device=order.device)
        expert = torch.arange(E, device=order.device).repeat_interleave(count_E)
        index_TK = torch.empty_like(order).index_copy(0, order, expert).view(T, -1)
        weights_TK = torch.empty_like(weights).index_copy(0, order, weights).view(T, -1)
        changed = decide(Routing(logits_TE, weights_TK, index_TK))
        if changed is None:
            return None
        expert = changed.index_TK.flatten()
        order = expert.argsort()
        counts = torch.bincount(expert, minlength=logits_TE.shape[-1]).tolist()
        token = order // changed.index_TK.shape[-1]
        return order, token, changed.weights_TK.flatten()[order], counts, changed.logits_TE

    return [router.register_forward_hook(TransientHook(hook))]


def dbrx(block: Any, decide: Decide) -> list[Any]:
    """DBRX: the router returns logits; the decision is changed where the block passes it to the
    experts."""
    logits: list[Tensor] = []

    def note(module: nn.Module, args: tuple, output: Tensor) -> None:
        logits[:] = [output]

    def hook(module: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> tuple | None:
        hidden, index_TK, weights_TK = args
        changed = decide(Routing(logits.pop(), weights_TK, index_TK))
        return None if changed is None else (hidden, changed.index_TK, changed.weights_TK)

    return [
        block.router.register_forward_hook(TransientHook(note)),
        block.experts.register_forward_pre_hook(TransientHook(hook)),
    ]


LOGITS = "logits"
SIGMOID = "sigmoid"
PROBABILITY = "probability"


@dataclass(frozen=True)
class Rule:
    """A rule from logits to chosen experts and combine weights."""

    noise: str
    """The scores by which experts are chosen, and to which noise is added: LOGITS, SIGMOID or
    PROBABILITY."""
    scores: Callable[[nn.Module, Tensor], Tensor]
    """(router, logits_TE) -> float32 [T, E], before a bias is added."""
    weights: Callable[[nn.Module, Tensor, Tensor], Tensor]
    """(router, logits_TE, index_TK) -> weights_TK, exactly as the router computes them."""
    text: str
    """The weight rule as text, for the table in docs/models.md."""
    select: Callable[[nn.Module, Tensor, int], Tensor] | None = None
    """(router, scores_TE, K) -> int64 [T, K]; None: the K largest."""
    logits: Callable[[Tensor], Tensor] = lambda scores_TE: scores_TE
    """For a rule with LOGITS: the router's output for given `scores`."""

    def choose(self, router: nn.Module, scores_TE: Tensor, k: int) -> Tensor:
        """int64 [T, K]: the experts that a router chooses by these scores, bias and noise
        included."""
        if self.select is None:
            return scores_TE.topk(k, dim=-1).indices
        return self.select(router, scores_TE, k)


def _logits(router: nn.Module, logits_TE: Tensor) -> Tensor:
    """`Rule.scores` of routers that choose by their logits."""
    return logits_TE.float()


def softmax(*, renormalize: bool | None = None, cast: bool = True) -> Rule:
    """Softmax over all experts in float32, gathered at the chosen ones.

    Args:
        renormalize: whether weights are scaled to sum to 1; None: as `router.norm_topk_prob`.
        cast: whether weights are cast to the logits' dtype.
    """

    def weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
        weights_TK = _softmax_scores(router, logits_TE).gather(-1, index_TK)
        sum_to_1 = router.norm_topk_prob if renormalize is None else renormalize
        if sum_to_1:
            weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
        return weights_TK.to(logits_TE.dtype) if cast else weights_TK

    text = "softmax over all, gathered"
    if renormalize is None:
        text += ", renormalized if `norm_topk_prob`"
    elif renormalize:
        text += ", renormalized"
    return Rule(LOGITS, _logits, weights, text)


def softmax_of_chosen() -> Rule:
    """Softmax over the logits of the chosen experts, in the logits' dtype."""

    def weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
        return torch.softmax(logits_TE.gather(-1, index_TK), dim=-1)

    return Rule(LOGITS, _logits, weights, "softmax over the chosen")


def sigmoid(*, eps: float = 0.0, scale: str | None = None, closed: float = float("-inf")) -> Rule:
    """Sigmoid of each logit (or `router.score_fn`), gathered at the chosen experts, renormalized,
    scaled.

    Weights are not renormalized if `router.norm_topk_prob` is false. Experts are chosen within
    groups if the router has `num_group`.

    Args:
        eps: added to the sum by which weights are divided.
        scale: attribute of the router by which weights are multiplied.
        closed: score of experts in groups that are not chosen.
    """

    def scores(router: nn.Module, logits_TE: Tensor) -> Tensor:
        return getattr(router, "score_fn", torch.sigmoid)(logits_TE.float())

    def weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
        weights_TK = scores(router, logits_TE).gather(-1, index_TK)
        if getattr(router, "norm_topk_prob", True):
            weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + eps)
        if scale is None:
            return weights_TK
        return weights_TK * getattr(router, scale)

    def select(router: nn.Module, scores_TE: Tensor, k: int) -> Tensor:
        """Within the `topk_group` groups whose two best scores have the largest sums
        (DeepSeek-V3)."""
        if not getattr(router, "num_group", None):
            return scores_TE.topk(k, dim=-1).indices
        best_TG = _by_group(router, scores_TE).topk(2, dim=-1).values.sum(dim=-1)
        return _top_k_of_groups(router, scores_TE, best_TG, k, closed)

    text = "sigmoid, gathered, renormalized"
    if scale is not None:
        text += ", scaled"
    return Rule(SIGMOID, scores, weights, text, select)


def _by_group(router: nn.Module, scores_TE: Tensor) -> Tensor:
    """[T, G, E / G]: the scores of each group's experts."""
    return scores_TE.unflatten(-1, (router.num_group, -1))


def _top_k_of_groups(
    router: nn.Module, scores_TE: Tensor, best_TG: Tensor, k: int, closed: float = float("-inf")
) -> Tensor:
    """int64 [T, K]: the experts with the largest scores within the `topk_group` best groups.

    Args:
        best_TG: the groups' scores.
        closed: score of experts in groups that are not chosen.
    """
    open_TG = torch.zeros_like(best_TG, dtype=torch.bool)
    open_TG.scatter_(-1, best_TG.topk(router.topk_group, dim=-1).indices, True)
    open_TE = open_TG.repeat_interleave(scores_TE.shape[-1] // router.num_group, dim=-1)
    return scores_TE.masked_fill(~open_TE, closed).topk(k, dim=-1).indices


def _scaled_softmax(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """[T, K]: the softmax over all at the chosen experts, times `routed_scaling_factor`."""
    return _softmax_scores(router, logits_TE).gather(-1, index_TK) * router.routed_scaling_factor


def _groups_by_best(router: nn.Module, scores_TE: Tensor, k: int) -> Tensor:
    """DeepSeek-V2: within the groups with the best experts, if `topk_method` is group-limited."""
    if router.topk_method != "group_limited_greedy":
        return scores_TE.topk(k, dim=-1).indices
    return _top_k_of_groups(router, scores_TE, _by_group(router, scores_TE).amax(dim=-1), k)


DEEPSEEK_V2 = Rule(
    LOGITS, _logits, _scaled_softmax, "softmax over all, gathered, scaled", _groups_by_best
)


def _mistral_weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """[T, K]: the softmax over all in the logits' dtype, renormalized and scaled."""
    weights_TK = logits_TE.softmax(dim=-1).gather(-1, index_TK)
    if getattr(router, "norm_topk_prob", True):
        weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + 1e-20)
    return weights_TK * router.routed_scaling_factor


def _groups_by_two_probabilities(router: nn.Module, scores_TE: Tensor, k: int) -> Tensor:
    """Within the groups whose two most probable experts have the largest sums of probabilities."""
    probs_TE = scores_TE.softmax(dim=-1)
    best_TG = _by_group(router, probs_TE).topk(2, dim=-1).values.sum(dim=-1)
    return _top_k_of_groups(router, scores_TE, best_TG, k)


MISTRAL = Rule(
    LOGITS,
    _logits,
    _mistral_weights,
    "softmax over all, gathered, renormalized, scaled",
    _groups_by_two_probabilities,
)


def _softmax_scores(router: nn.Module, logits_TE: Tensor) -> Tensor:
    """`Rule.scores` of routers that choose by probabilities plus a bias."""
    return torch.softmax(logits_TE, dim=-1, dtype=torch.float32)


def _ernie_weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """[T, K]: the softmax over all, divided by the chosen experts' sum."""
    weights_TK = _softmax_scores(router, logits_TE).gather(-1, index_TK)
    return weights_TK / weights_TK.sum(dim=-1, keepdim=True).clamp(min=router.norm_min)


BIASED = Rule(PROBABILITY, _softmax_scores, softmax().weights, softmax().text)
ERNIE = Rule(
    PROBABILITY, _softmax_scores, _ernie_weights, "softmax over all, gathered, renormalized"
)
LONGCAT = Rule(PROBABILITY, _softmax_scores, _scaled_softmax, "softmax over all, gathered, scaled")


def _kolibri_weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """[T, K]: the chosen experts' sigmoids, which sum to 1 with `norm_topk_prob`."""
    weights_TK = logits_TE.gather(-1, index_TK).sigmoid()
    if router.norm_topk_prob:
        weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
    return weights_TK


KOLIBRI = Rule(
    LOGITS, _logits, _kolibri_weights, "sigmoid, gathered, renormalized if `norm_topk_prob`"
)


def _cohere_weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """[T, K]: the softmax over the chosen experts, or their sigmoids."""
    chosen_TK = logits_TE.gather(-1, index_TK)
    if router.expert_selection_fn == "softmax":
        return torch.softmax(chosen_TK, dim=-1, dtype=torch.float32)
    weights_TK = chosen_TK.sigmoid()
    if router.norm_topk_prob:
        weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
    return weights_TK


COHERE = Rule(LOGITS, _logits, _cohere_weights, "softmax over the chosen, or their sigmoids")


def _gemma_logits(router: nn.Module, probs_TE: Tensor) -> Tensor:
    """Gemma-4's router returns probabilities. Their logarithms are its logits up to a constant per
    token."""
    return probs_TE.float().log()


def _gemma_weights(router: nn.Module, probs_TE: Tensor, index_TK: Tensor) -> Tensor:
    """[T, K]: the chosen experts' probabilities, divided by their sum, times a scale of each
    expert."""
    weights_TK = probs_TE.gather(-1, index_TK)
    return weights_TK / weights_TK.sum(dim=-1, keepdim=True) * router.per_expert_scale[index_TK]


GEMMA = Rule(
    LOGITS,
    _gemma_logits,
    _gemma_weights,
    "softmax over all, gathered, renormalized, scaled per expert",
    logits=torch.exp,
)


def _llama_weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """[T, K]: the chosen experts' sigmoids."""
    return logits_TE.float().sigmoid().gather(-1, index_TK).to(logits_TE.dtype)


LLAMA4 = Rule(LOGITS, _logits, _llama_weights, "sigmoid, gathered (on the experts' input)")


def _sparse_mixer_weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """Each expert's softmax over experts not chosen before it and not far below it
    ("SparseMixer-v2", in evaluation).

    "Far below" is relative to the chosen expert's logit, which without noise is the largest one.
    """
    left_TE = logits_TE
    weights = []
    for index_T1 in index_TK.split(1, dim=-1):
        chosen_T1 = left_TE.gather(-1, index_T1)
        scale_TE = logits_TE.abs().clamp(min=chosen_T1)
        is_far_below_TE = (chosen_T1 - logits_TE) / scale_TE > 2 * router.router_jitter_noise
        near_TE = left_TE.masked_fill(is_far_below_TE, float("-inf"))
        weights.append(near_TE.softmax(dim=-1).gather(-1, index_T1))
        left_TE = left_TE.scatter(-1, index_T1, float("-inf"))
    return torch.cat(weights, dim=-1)


SPARSE_MIXER = Rule(
    LOGITS,
    _logits,
    _sparse_mixer_weights,
    "each expert's softmax among those left and not far below it",
)


def _dbrx_weights(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """[T, K]: the softmax over all, divided by a norm of the chosen experts' weights."""
    weights_TK = torch.softmax(logits_TE, dim=-1, dtype=logits_TE.dtype).gather(-1, index_TK)
    power = router.moe_normalize_expert_weights
    if power is None:
        return weights_TK
    return weights_TK / torch.norm(weights_TK, p=power, dim=-1, keepdim=True)


DBRX = Rule(
    LOGITS, _logits, _dbrx_weights, "softmax over all, gathered, divided by a norm of the chosen"
)
