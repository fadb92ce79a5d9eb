"""The routers of a model.

T = tokens of a pass, E = experts, K = experts per token, C = experts of a wider decision.
"""

from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor, nn

from moe_lab.routing.families import Family, family_of
from moe_lab.routing.passes import around, in_use
from moe_lab.routing.rules import Routing


@dataclass(frozen=True)
class Router:
    """A router of a model."""

    layer: int
    """Number of its MoE layer, counted from 0."""
    name: str
    """Its module name in the model."""
    module: nn.Module
    family: Family
    block: nn.Module
    """The module that calls the router."""

    def scores(self, logits_TE: Tensor) -> Tensor:
        """float32 [T, E]: the scores by which the router chooses experts, and to which noise is
        added."""
        scores_TE = self.family.rule.scores(self.module, logits_TE)
        path = self.family.bias
        if path is None:
            return scores_TE
        owner = self.module if hasattr(self.module, path.partition(".")[0]) else self.block
        bias_E = attrgetter(path)(owner).float().reshape(-1)
        return scores_TE + bias_E

    def choose(self, scores_TE: Tensor, k: int) -> Tensor:
        """int64 [T, k]: the experts that the router chooses at these scores."""
        return self.family.rule.choose(self.module, scores_TE, k)

    def weights(self, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
        """Combine weights [T, K] of the experts `index_TK`, as the router computes them."""
        return self.family.rule.weights(self.module, logits_TE, index_TK)

    def widened(self, routing: Routing, C: int) -> Routing:
        """The same decision with C distinct experts for each token, at least K; added experts have
        weight 0."""
        more = C - routing.index_TK.shape[-1]
        if not more:
            return routing
        others_TE = self.scores(routing.logits_TE).scatter(-1, routing.index_TK, -torch.inf)
        index_TC = torch.cat([routing.index_TK, others_TE.topk(more, dim=-1).indices], dim=-1)
        weights_TC = torch.nn.functional.pad(routing.weights_TK, (0, more))
        return Routing(routing.logits_TE, weights_TC, index_TC)


def find_routers(model: nn.Module) -> list[Router]:
    """All routers of a model, in the order of its layers; empty for a model without a supported
    router."""
    routers: list[Router] = []
    for name, module in model.named_modules():
        family = family_of(module)
        if family is None or not in_use(model, name):
            continue
        block = around(model, name)
        # a router's class may also have other uses
        if family.block is not None and family.block != type(block).__name__:
            continue
        if family.within is not None and family.within not in name.split("."):
            continue
        routers.append(Router(len(routers), name, module, family, block))
    return routers
