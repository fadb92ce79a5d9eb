"""What the untouched model makes of prompts, as far as their last tokens need it under other routings.

M = tokens of one prompt (its last and those of its continuations), D = hidden size, E = experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.engine.cache import RowCache
from moe_lab.engine.kept_rows import CleanForward
from moe_lab.engine.scoring import Question
from moe_lab.engine.tokens import TreeRow
from moe_lab.routing import Router, Routing, routed
from moe_lab.routing.remix import router_probs


@dataclass(frozen=True)
class PromptTail:
    """What the untouched model computed for one prompt, as far as its last token (and what follows) needs it."""

    past: RowCache
    """Keys and values of the prompt without its last token, of the layers from the parting one on."""
    hidden_MD: Tensor
    """Hidden states as the parting decoder layer takes them: of the last token, then of its continuations' tokens."""
    pathway_ME: Tensor
    """float32 [MoE layers, E] on the CPU: the router's probabilities at the last token."""
    tree: TreeRow
    """The last token, and the continuations that hang off it."""

    @property
    def hidden_1D(self) -> Tensor:
        return self.hidden_MD[:1]

    @property
    def position(self) -> int:
        """Index of the last token in its prompt."""
        return self.tree.positions[0]

    @property
    def nbytes(self) -> int:
        return self.past.nbytes + self.hidden_MD.nbytes + self.pathway_ME.nbytes


class PromptTailReader(CleanForward):
    """The plain model, which notes what last tokens need."""

    def __enter__(self) -> PromptTailReader:
        super().__enter__()
        self.probs: dict[int, list[Tensor]] = {}
        self._stack.enter_context(routed(self.model, self._note_probs))
        return self

    def _note_probs(self, router: Router, routing: Routing) -> None:
        probs_ME = router_probs(router, routing.logits_TE[self._wanted])
        self.probs.setdefault(router.layer, []).append(probs_ME.to(self.device))

    def tails(self, questions: list[Question], cache: RowCache) -> list[PromptTail]:
        """Of a batch whose passes have just been made."""
        trees = [TreeRow(q.context, q.continuations, cached=len(q.context) - 1) for q in questions]
        sizes = [len(tree) for tree in trees]
        pathways_LME = torch.stack([torch.cat(self.probs[layer]) for layer in sorted(self.probs)]).cpu()
        pathways, parted = pathways_LME.split(sizes, dim=1), torch.cat(self.parted).split(sizes)
        self.probs, self.parted, self.final = {}, [], []
        return [
            PromptTail(
                cache.taken(b, tree.positions[0], self.first),
                parted[b].clone(),
                pathways[b][:, 0].clone(),
                tree,
            )
            for b, tree in enumerate(trees)
        ]
