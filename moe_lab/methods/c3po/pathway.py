"""Pathways: the routing probabilities that C3PO optimizes (section 3.5), and noise around them.

N = questions, W = re-routed tokens of each, M = MoE layers, L = optimized ones, E = experts,
C = core experts, K = experts per token, P = sequences of a pass, T = N x W, S = states of an
optimization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from moe_lab.routing.remix import Remix

FLOOR = 1e-9
"""Where weights are clipped. `Remix` takes logarithms, so an expert at exactly 0 would never get a
gradient again."""


class Pathways:
    """Routing probabilities of W tokens of N questions.

    Those of core experts in the optimized layers may change.

    The core experts of a token and layer are those with the largest probabilities in the base
    model. The core keeps its total probability in the base model, and each expert outside the core
    keeps its own.

    Args:
        pathway_NWME: probabilities of the base model.
        layers: numbers of the optimized MoE layers.
        core_experts: C; None or more than E: all.
        parameters: "weights": the parameters are the probabilities of the core experts
            (equation 1), scaled to the core's total; "logits": the core's total times the softmax
            of the parameters.
        top_k: K. A smaller core is relaxed together with the other experts that the base model
            chooses.
    """

    def __init__(
        self,
        pathway_NWME: Tensor,
        layers: Sequence[int],
        core_experts: int | None,
        parameters: str = "logits",
        top_k: int = 1,
    ):
        self.layers = list(layers)
        self.parameters = parameters
        self.clean_NWLE = pathway_NWME[:, :, self.layers]
        E = pathway_NWME.shape[-1]
        C = min(core_experts or E, E)
        core_NWLC, self.core = self.clean_NWLE.topk(C, dim=-1)
        self.relaxed = self.clean_NWLE.topk(max(C, top_k), dim=-1).indices
        """int64 [N, W, L, max(C, K)]: the experts that contribute with `relax="core"`."""
        self.mass_NWL1 = core_NWLC.sum(dim=-1, keepdim=True)
        self.theta = torch.empty_like(core_NWLC)
        """Leaf [N, W, L, C]: the parameters, one for each of the core experts `core` (int64 [N, W,
        L, C])."""
        self.set_core(core_NWLC)

    def __len__(self) -> int:
        return len(self.theta)

    def copy(self, parameters: str | None = None) -> Pathways:
        """The same pathways with separate parameters; `parameters` (default: the same) says of
        which kind."""
        copy = object.__new__(Pathways)
        copy.__dict__.update(self.__dict__, theta=self.theta.detach().clone().requires_grad_())
        if parameters not in (None, self.parameters):
            copy.parameters = parameters
            copy.set_core(self.core_probs())
        return copy

    def on(self, device: torch.device) -> Pathways:
        """The same pathways on a device, with separate parameters."""
        copy = self.copy()
        for name in ("clean_NWLE", "core", "relaxed", "mass_NWL1"):
            setattr(copy, name, getattr(self, name).to(device))
        copy.theta = self.theta.detach().to(device, copy=True).requires_grad_()
        return copy

    def core_probs(self) -> Tensor:
        """[N, W, L, C]: probabilities of the core experts."""
        if self.parameters == "logits":
            return self.theta.softmax(dim=-1) * self.mass_NWL1
        return self.theta / self.theta.sum(dim=-1, keepdim=True) * self.mass_NWL1

    def set_core(self, probs_NWLC: Tensor) -> None:
        """Set the probabilities of the core experts, scaled to the core's mass."""
        probs_NWLC = probs_NWLC.detach()
        if self.parameters == "logits":
            probs_NWLC = probs_NWLC.clamp(min=torch.finfo(probs_NWLC.dtype).tiny).log()
        self.theta = probs_NWLC.clone().requires_grad_()

    @torch.no_grad()
    def project(self) -> None:
        """After a step: clip weights at 0 and scale them to the core's mass, in place.

        Logits need neither.
        """
        if self.parameters == "weights":
            self.theta.clamp_(min=FLOOR)
            self.theta.copy_(self.core_probs())

    def to_core(self, pathway_NWLE: Tensor) -> Tensor:
        """[N, W, L, C]: the core experts' probabilities in other pathways,
        scaled to the core's mass."""
        at_core_NWLC = pathway_NWLE.gather(-1, self.core)
        return at_core_NWLC / at_core_NWLC.sum(dim=-1, keepdim=True) * self.mass_NWL1

    def probs_NWLE(self) -> Tensor:
        """Probabilities of all experts in the optimized layers."""
        return self.clean_NWLE.scatter(-1, self.core, self.core_probs())

    def probs(self) -> dict[int, Tensor]:
        """[N, W, E] by optimized MoE layer."""
        return dict(zip(self.layers, self.probs_NWLE().unbind(dim=2), strict=True))

    def remix(self, relax: str, question_P: Tensor | None = None) -> Remix:
        """The policy that routes the re-routed tokens of a pass by these pathways.

        Args:
            relax: "topk": the router's K experts with these probabilities; "core": all core experts
                contribute.
            question_P: int64: the question whose pathway each sequence takes; None: the questions
                in order.
        """
        rows = slice(None) if question_P is None else question_P
        probs = {layer: probs_NWE[rows] for layer, probs_NWE in self.probs().items()}
        if relax == "topk":
            return Remix(probs)
        relaxed = {}
        for layer, experts_NWC in zip(self.layers, self.relaxed.unbind(dim=2), strict=True):
            relaxed[layer] = experts_NWC[rows]
        return Remix(probs, relaxed)


class ChangedPathways(NamedTuple):
    """The result of an optimizer."""

    pathways: Pathways
    losses_SN: Tensor
    """float32: the losses on the neighbours, of the original pathways and after every step (of
    kernel regression: of its only one); NaN for a question without neighbours."""


Watch = Callable[[Pathways], None]
"""A callback that gets the pathways before each step of an optimization and after the last."""


def unwatched(pathways: Pathways) -> None:
    """Default: does nothing."""
