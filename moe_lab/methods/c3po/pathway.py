"""Pathways of questions, and the parameters that C3PO changes in them.

N = questions, W = re-routed tokens of each, M = MoE layers, L = optimized ones, E = experts, C = core experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from moe_lab.routing.remix import Remix


class Pathways:
    """Routing probabilities of W tokens of N questions each, of which those of the core experts in the optimized layers
    may change.

    The core experts of a token and layer are those that its own router weighs most. Parameters are logits over them:
    their softmax, times the probability that the core has in the untouched model, is the core's pathway, so that all
    probabilities stay distributions and experts outside the core keep theirs.

    Args:
        pathway_NWME: probabilities of the untouched model.
        layers: numbers of the optimized MoE layers.
        core_experts: C; None, or more than there are: all.
    """

    def __init__(self, pathway_NWME: Tensor, layers: Sequence[int], core_experts: int | None):
        self.layers = list(layers)
        self.clean_NWLE = pathway_NWME[:, :, self.layers]
        E = pathway_NWME.shape[-1]
        own_NWLC, self.core = self.clean_NWLE.topk(min(core_experts or E, E), dim=-1)
        self.mass_NWL1 = own_NWLC.sum(dim=-1, keepdim=True)
        self.theta = torch.empty_like(own_NWLC)
        """Leaf [N, W, L, C]: logits over the core experts `core` (int64 [N, W, L, C])."""
        self.set_core(own_NWLC)

    def __len__(self) -> int:
        return len(self.theta)

    def copy(self) -> Pathways:
        """The same pathways with parameters of their own."""
        other = object.__new__(Pathways)
        other.__dict__.update(self.__dict__, theta=self.theta.detach().clone().requires_grad_())
        return other

    def core_probs(self) -> Tensor:
        """[N, W, L, C]: probabilities of the core experts."""
        return self.theta.softmax(dim=-1) * self.mass_NWL1

    def set_core(self, probs_NWLC: Tensor) -> None:
        """Take these probabilities of the core experts, scaled to the core's mass."""
        tiny = torch.finfo(probs_NWLC.dtype).tiny
        self.theta = probs_NWLC.detach().clamp(min=tiny).log().requires_grad_()

    def to_core(self, pathway_NWLE: Tensor) -> Tensor:
        """[N, W, L, C]: what other pathways say of the core experts, scaled to the core's mass."""
        at_core_NWLC = pathway_NWLE.gather(-1, self.core)
        return at_core_NWLC / at_core_NWLC.sum(dim=-1, keepdim=True) * self.mass_NWL1

    def probs_NWLE(self) -> Tensor:
        """Probabilities of all experts, in the optimized layers."""
        return self.clean_NWLE.scatter(-1, self.core, self.core_probs())

    def probs(self) -> dict[int, Tensor]:
        """Of each optimized MoE layer: [N, W, E]."""
        return dict(zip(self.layers, self.probs_NWLE().unbind(dim=2), strict=True))

    def noisy(self, noise: dict[int, Tensor]) -> Remix:
        """The policy that chooses the re-routed tokens' K experts with noise ([N, W, E] of each optimized layer)."""
        return Remix(self.probs(), noise=noise)

    def remix(self, relax: str, question_P: Tensor | None = None) -> Remix:
        """The policy that routes the re-routed tokens of sequences so.

        Args:
            relax: "topk": the router's K experts at these probabilities; "core": all core experts contribute.
            question_P: int64: whose pathway each sequence of the pass takes; None: the questions in order.
        """
        index = slice(None) if question_P is None else question_P
        probs = {layer: probs_NWE[index] for layer, probs_NWE in self.probs().items()}
        if relax == "topk":
            return Remix(probs)
        cores = zip(self.layers, self.core.unbind(dim=2), strict=True)
        return Remix(probs, {layer: core_NWC[index] for layer, core_NWC in cores})


Watch = Callable[[Pathways], None]
"""Is shown pathways while they are optimized."""


def unwatched(pathways: Pathways) -> None:
    """Nobody looks."""
