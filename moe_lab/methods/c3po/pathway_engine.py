"""Answers the questions of `method=c3po` in batches: neighbours, pathways, answers.

Losses are of the first token of a right answer, which is all of it where answers are letters.

N = questions of a batch, k = neighbours of each, R = references.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from moe_lab.engine.prompt_tails import PromptTail, PromptTails
from moe_lab.engine.scoring import Budget, Question, Scores
from moe_lab.engine.store import Store, store_on
from moe_lab.methods.c3po.kernels import kernel
from moe_lab.methods.c3po.loss import NeighbourLoss
from moe_lab.methods.c3po.mode_finding import Shifts, mode_finding
from moe_lab.methods.c3po.neighbours import Neighbours, neighbours
from moe_lab.methods.c3po.ngd import Descent, ngd
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.methods.c3po.regression import kernel_regression

if TYPE_CHECKING:
    from moe_lab.methods.c3po.method import C3PO
    from moe_lab.methods.c3po.references import ReferenceSet
    from moe_lab.models.load import LoadedModel

AT_ONCE = 16
"""Questions whose pathways are optimized together."""


class PathwayEngine:
    """Scores questions in batches: neighbours, pathways, answers."""

    def __init__(
        self,
        model: LoadedModel,
        settings: C3PO.Config,
        layers: list[int],
        references: ReferenceSet,
        budget: Budget,
    ):
        self.model, self.settings, self.layers, self.budget = model, settings, layers, budget
        self.references = references
        self.tails = PromptTails(model.model, layers[0])
        self.texts: dict[tuple[int, ...], str] = {}
        """The prompt of each context."""
        self.golds: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Right answers as token ids; the oracle's alone."""
        self.counted = {"reference_dropped": 0, "reference_none": 0}
        self._kept: Store[PromptTail] = store_on(model.device)

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far; those of optimization go through the later layers only."""
        return self.tails.tokens_in

    def score(self, questions: list[Question], on_scores: Callable[[int, Scores], None]) -> None:
        """Score all questions; `on_scores(index, scores)` is called as soon as a question is done."""
        for start in range(0, len(questions), AT_ONCE):
            batch = questions[start : start + AT_ONCE]
            tokens = self.tails.read(
                [question.context for question in batch],
                self.budget,
                [question.continuations for question in batch],
            )
            pathways = self._optimized(batch, tokens)
            for i, scores in enumerate(self.tails.score(tokens, pathways.remix("topk")), start):
                on_scores(i, scores)

    def _optimized(self, questions: list[Question], tokens: list[PromptTail]) -> Pathways:
        settings = self.settings
        clean = torch.stack([token.pathway_ME for token in tokens])
        pathways = Pathways(clean, self.layers, settings.core_experts)
        if settings.optimizer == "oracle":
            return ngd(pathways, self._own_loss(questions, tokens), self._descent)[0]
        embedding = self.references.embed([self.texts[tuple(q.context)] for q in questions], self.model)
        near = neighbours(
            embedding,
            self.references.embedding_RX,
            k=settings.k,
            epsilon=settings.epsilon,
            most_similar=settings.most_similar,
        )
        loss = self._neighbour_loss(near)
        self.counted["reference_dropped"] += int(near.dropped_Q.sum())
        self.counted["reference_none"] += int((~loss.found_N).sum())
        if settings.optimizer == "ngd":
            return ngd(pathways, loss, self._descent)[0]
        if settings.optimizer == "kernel_regression":
            return kernel_regression(pathways, loss, settings.alpha)[0]
        same_NR = embedding @ self.references.embedding_RX.T > settings.most_similar
        return mode_finding(pathways, loss, self.references.pathway_RME, self._shifts, same_NR)[0]

    @property
    def _descent(self) -> Descent:
        settings = self.settings
        first, last = settings.learning_rate
        return Descent(settings.steps, settings.update, (first, last), settings.schedule, settings.relax)

    @property
    def _shifts(self) -> Shifts:
        settings = self.settings
        alpha = 0.5 if settings.alpha is None else settings.alpha
        return Shifts(
            settings.shifts, alpha, settings.k, settings.epsilon, settings.kernel, settings.bandwidth
        )

    def _own_loss(self, questions: list[Question], tokens: list[PromptTail]) -> NeighbourLoss:
        golds = [[self.golds[tuple(question.context)][0]] for question in questions]
        return NeighbourLoss(self.tails, [[token] for token in tokens], golds, torch.ones(len(tokens), 1))

    def _neighbour_loss(self, near: Neighbours) -> NeighbourLoss:
        weight: Tensor = kernel(self.settings.kernel, near.distance_QK, self.settings.bandwidth)
        index = near.index_QK.tolist()
        found = self._reference_tokens(sorted({r for row in index for r in row if r >= 0}))
        tokens = [[found.get(r) for r in row] for row in index]
        golds = [[self.references.gold[r] if r >= 0 else 0 for r in row] for row in index]
        return NeighbourLoss(self.tails, tokens, golds, weight)

    def _reference_tokens(self, wanted: list[int]) -> dict[int, PromptTail]:
        """The last tokens of references; those that are not kept are read, and kept as far as memory is spare."""
        found = {r: token for r in wanted if (token := self._kept.get(r)) is not None}
        missing = [r for r in wanted if r not in found]
        read = self.tails.read([self.references.prompts[r] for r in missing], self.budget)
        for r, token in zip(missing, read, strict=True):
            self._kept.add(r, token)
            found[r] = token
        return found
