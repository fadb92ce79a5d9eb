"""The experts that a re-routed token takes with its optimized pathway.

N = questions, W = re-routed tokens of each, S = tokens of each suffix, T = N x S.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moe_lab.engine.choices import Choices, Layer, plain_choices, weights_of
from moe_lab.engine.suffix.recorder import PromptSuffix
from moe_lab.engine.suffix.replay import SuffixReplay
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.routing import Router, Routing
from moe_lab.routing.remix import Remix


def rerouted_choices(
    replay: SuffixReplay, suffixes: Sequence[PromptSuffix], pathways: Pathways
) -> list[Choices]:
    """Of the last re-routed token of each prompt. Layers before the first optimized one keep their routing."""
    with torch.no_grad():
        seen = _Seen(pathways.remix("topk").probs)
    replay.score(suffixes, seen)
    found = []
    for number, suffix in enumerate(suffixes):
        read = suffix.prompt[: suffix.position + replay.span.size]
        changed = [layer[number] for _, layer in sorted(seen.layers.items())]
        before = plain_choices(replay.model, read).layers
        found.append(Choices(read, before[: len(before) - len(changed)] + changed))
    return found


class _Seen(Remix):
    """Keeps the weights of the last re-routed token of every sequence, by MoE layer from the first one that runs."""

    def __init__(self, probs: dict[int, Tensor]):
        super().__init__(probs)
        first = next(iter(probs.values()))
        self.sequences, self.last = first.shape[0], first.shape[1] - 1
        self.layers: dict[int, list[Layer]] = {}

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        changed = super().__call__(router, routing)
        taken = changed or routing
        at_N = torch.arange(self.sequences) * (len(taken.index_TK) // self.sequences) + self.last
        pairs = zip(taken.index_TK.cpu()[at_N], taken.weights_TK.cpu()[at_N], strict=True)
        self.layers[router.layer] = [weights_of(*pair) for pair in pairs]
        return changed
