"""The language model of `method=c3po`: every question is scored with its own optimized pathway.

Losses are of the first token of a right answer, which is all of it where answers are letters.

N = questions of a batch, k = neighbours of each, R = references.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from moe_lab.engine.last_tokens import LastToken, LastTokens
from moe_lab.engine.lm import EngineLM, OnAnswer, Request
from moe_lab.engine.scoring import Budget, Question, Scores
from moe_lab.engine.store import Store, store_on
from moe_lab.methods.base import engine_options
from moe_lab.methods.c3po.kernels import kernel
from moe_lab.methods.c3po.loss import NeighbourLoss
from moe_lab.methods.c3po.mode_finding import Shifts, mode_finding
from moe_lab.methods.c3po.neighbours import Neighbours, neighbours
from moe_lab.methods.c3po.ngd import Descent, ngd
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.methods.c3po.regression import kernel_regression

if TYPE_CHECKING:
    from moe_lab.config import Config
    from moe_lab.methods.c3po.method import C3PO
    from moe_lab.methods.c3po.references import ReferenceSet
    from moe_lab.models.load import LoadedModel

AT_ONCE = 16
"""Questions whose pathways are optimized together."""
GoldOf = Callable[[str], str]
"""Prompt -> its right answer, for the oracle."""


class C3POLM(EngineLM):
    """Scores multiple-choice questions.

    Args:
        layers: numbers of the MoE layers to re-mix.
        gold_of: for the oracle alone.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: Config,
        settings: C3PO.Config,
        layers: list[int],
        references: ReferenceSet,
        gold_of: GoldOf | None = None,
    ):
        super().__init__(model.model, model.tokenizer, **engine_options(config))
        self.pathways = PathwayEngine(model, settings, layers, references, self.budget)
        self._engine = self.pathways  # type: ignore[assignment]  # its `score` is all that is asked for
        self._gold_of = gold_of

    @property
    def cost(self) -> dict[str, int]:
        """As `EngineLM.cost`, with references that were too similar, and questions that had no neighbour."""
        return super().cost | self.pathways.counted

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        assert kind == "loglikelihood", "other tasks are refused before weights load"
        for request in requests:
            prompt = request.args[0]
            context, _ = self.encode_pair(*request.args)
            self.pathways.texts[context] = prompt
            if self._gold_of:
                self.pathways.golds[context] = self.encode_pair(prompt, self._gold_of(prompt))[1]
        super().answer(kind, requests, on_answer)


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
        self.last = LastTokens(model.model, layers[0])
        self.texts: dict[tuple[int, ...], str] = {}
        """The prompt of each context."""
        self.golds: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Right answers as token ids; the oracle's alone."""
        self.counted = {"reference_dropped": 0, "reference_none": 0}
        self._kept: Store[LastToken] = store_on(model.device)

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far; those of optimization go through the later layers only."""
        return self.last.tokens_in

    def score(self, questions: list[Question], on_scores: Callable[[int, Scores], None]) -> None:
        """Score all questions; `on_scores(index, scores)` is called as soon as a question is done."""
        for start in range(0, len(questions), AT_ONCE):
            batch = questions[start : start + AT_ONCE]
            tokens = self.last.read(
                [question.context for question in batch],
                self.budget,
                [question.continuations for question in batch],
            )
            pathways = self._optimized(batch, tokens)
            for i, scores in enumerate(self.last.score(tokens, pathways.remix("topk")), start):
                on_scores(i, scores)

    def _optimized(self, questions: list[Question], tokens: list[LastToken]) -> Pathways:
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

    def _own_loss(self, questions: list[Question], tokens: list[LastToken]) -> NeighbourLoss:
        golds = [[self.golds[tuple(question.context)][0]] for question in questions]
        return NeighbourLoss(self.last, [[token] for token in tokens], golds, torch.ones(len(tokens), 1))

    def _neighbour_loss(self, near: Neighbours) -> NeighbourLoss:
        weight: Tensor = kernel(self.settings.kernel, near.distance_QK, self.settings.bandwidth)
        index = near.index_QK.tolist()
        found = self._reference_tokens(sorted({r for row in index for r in row if r >= 0}))
        tokens = [[found.get(r) for r in row] for row in index]
        golds = [[self.references.gold[r] if r >= 0 else 0 for r in row] for row in index]
        return NeighbourLoss(self.last, tokens, golds, weight)

    def _reference_tokens(self, wanted: list[int]) -> dict[int, LastToken]:
        """The last tokens of references; those that are not kept are read, and kept as far as memory is spare."""
        found = {r: token for r in wanted if (token := self._kept.get(r)) is not None}
        missing = [r for r in wanted if r not in found]
        read = self.last.read([self.references.prompts[r] for r in missing], self.budget)
        for r, token in zip(missing, read, strict=True):
            self._kept.add(r, token)
            found[r] = token
        return found
