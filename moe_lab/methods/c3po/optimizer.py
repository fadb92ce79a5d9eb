"""The optimization of pathways: find neighbours, build their loss, run the optimizer.

N = questions of a batch, K = neighbours of each, R = references.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.engine.forward.kv_cache import Store, store_on
from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import PromptSuffix, SuffixReplay
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.descent import NeighbourLoss, ngd
from moe_lab.methods.c3po.kernel_methods import kernel, kernel_regression, mode_finding, without_neighbours
from moe_lab.methods.c3po.pathway import Pathways, Watch, unwatched
from moe_lab.methods.references.embeddings import Neighbours, neighbours, normalized, text_ids
from moe_lab.methods.references.reference_set import ReferenceSet
from moe_lab.models.load import LoadedModel


@dataclass(frozen=True)
class Optimized:
    """The optimized pathways of N questions."""

    pathways: Pathways
    losses: Tensor
    """float32 [states, N]: on the neighbours, of the original pathway and after every step."""
    near: Neighbours | None = None
    """None for the oracle."""
    weight_NK: Tensor | None = None
    """Kernel weights of any scale."""


class PathwayOptimizer:
    """Optimizes the pathways of questions on their neighbours; the oracle uses their own right answers."""

    def __init__(
        self,
        model: LoadedModel,
        settings: C3POConfig,
        layers: list[int],
        references: ReferenceSet | None,
        replay: SuffixReplay,
        budget: Budget,
    ):
        self.model, self.settings, self.layers = model, settings, layers
        self.references, self.replay, self.budget = references, replay, budget
        self.counted = {"reference_dropped": 0, "reference_none": 0}
        self._kept: Store = store_on(model.device)
        """Suffixes of references by the token ids of prompt and answer."""

    def __call__(
        self,
        texts: Sequence[str],
        suffixes: Sequence[PromptSuffix],
        own: Sequence[PromptSuffix] | None = None,
        watch: Watch = unwatched,
    ) -> Optimized:
        """Optimize the pathways of N prompts.

        Args:
            texts, suffixes: of the prompts.
            own: for the oracle, the prompts read with only their right answers.
            watch: gets the pathways of every state.
        """
        settings = self.settings
        clean = torch.stack([suffix.pathway_WME for suffix in suffixes])
        pathways = Pathways(clean, self.layers, settings.core_experts, top_k=self.model.facts.top_k)
        if own is not None:
            loss = NeighbourLoss(
                self.replay, [[suffix] for suffix in own], torch.ones(len(own), 1), settings.loss, self.budget
            )
            return Optimized(*ngd(pathways, loss, settings, watch))
        references = self.references
        assert references is not None, "only the oracle has none"
        embedding = self._embedded(references, list(texts), suffixes)
        near = self._nearest(references, embedding)
        weight_NK = kernel(settings.kernel, near.distance_QK, settings.bandwidth)
        index = near.index_QK.tolist()
        found = self._reference_suffixes(references, sorted({r for row in index for r in row if r >= 0}))
        of_questions = [[found.get(r) for r in row] for row in index]
        loss = NeighbourLoss(self.replay, of_questions, weight_NK, settings.loss, self.budget)
        none_N = ~loss.found_N
        if settings.optimizer == "ngd":
            changed = ngd(pathways, loss, settings, watch)
        elif settings.optimizer == "kernel_regression":
            changed = kernel_regression(pathways, loss, settings.alpha, watch)
        else:
            excluded_NR = embedding @ references.embedding_RX.T > settings.most_similar
            reference_RWME = references.pathway_RWME
            none_N = without_neighbours(pathways, reference_RWME, settings, excluded_NR)
            changed = mode_finding(pathways, loss, reference_RWME, settings, excluded_NR, watch)
        self.counted["reference_dropped"] += int(near.dropped_Q.sum())
        self.counted["reference_none"] += int(none_N.sum())
        return Optimized(*changed, near, weight_NK)

    def _nearest(self, references: ReferenceSet, embedding: Tensor) -> Neighbours:
        """The neighbours by embeddings. Mode finding's `epsilon` is a radius of pathways, so its loss uses k."""
        settings = self.settings
        return neighbours(
            embedding,
            references.embedding_RX,
            k=settings.k,
            epsilon=None if settings.optimizer == "mode_finding" else settings.epsilon,
            most_similar=settings.most_similar,
        )

    def _embedded(
        self, references: ReferenceSet, texts: list[str], suffixes: Sequence[PromptSuffix]
    ) -> Tensor:
        """float32 [N, X]: embeddings of the prompts. Hidden states are not computed again if the prompts have the same
        tokens as the texts."""
        if references.how is None:
            ids = text_ids(texts, self.model)
            if all(suffix.prompt == tuple(tokens) for suffix, tokens in zip(suffixes, ids, strict=True)):
                return normalized(torch.stack([suffix.mean_D for suffix in suffixes]), references.mean_X)
        return references.embed(texts, self.model)

    def _reference_suffixes(self, references: ReferenceSet, wanted: list[int]) -> dict[int, PromptSuffix]:
        """The suffixes of references. New ones are read, and kept while there is memory for them."""
        keys = {r: (tuple(references.prompts[r]), tuple(references.golds[r])) for r in wanted}
        found = {r: suffix for r, key in keys.items() if (suffix := self._kept.get(key)) is not None}
        missing = [key for r, key in keys.items() if r not in found]
        prompts, answers = [prompt for prompt, _ in missing], [[answer] for _, answer in missing]
        read = dict(zip(missing, self.replay.read(prompts, self.budget, answers), strict=True))
        for key, suffix in read.items():
            self._kept.add(key, suffix)
        return found | {r: read[key] for r, key in keys.items() if key in read}
