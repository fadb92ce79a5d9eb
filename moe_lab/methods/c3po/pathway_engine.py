"""Answers the questions of `method=c3po` in batches: reads them, has their pathways optimized, scores their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moe_lab.engine.prompt_tails import PromptTail, PromptTails
from moe_lab.engine.scoring import Budget, Question, Scores
from moe_lab.methods.c3po.optimizing import Optimized, PathwayOptimizer
from moe_lab.methods.c3po.pathway import Pathways, Watch, unwatched
from moe_lab.methods.c3po.tokens import check_length, named_tokens
from moe_lab.methods.c3po.trace import Trace

if TYPE_CHECKING:
    from moe_lab.methods.c3po.method import C3PO
    from moe_lab.methods.c3po.references import ReferenceSet
    from moe_lab.models.load import LoadedModel

AT_ONCE = 32
"""Questions whose pathways are optimized together."""
Tokens = tuple[int, ...]


@dataclass
class Asked:
    """The texts behind what the engine is given as token ids."""

    prompts: dict[Tokens, str] = field(default_factory=dict)
    """Of each context."""
    continuations: dict[tuple[Tokens, Tokens], str] = field(default_factory=dict)
    """Of each context and continuation."""
    golds: dict[Tokens, Tokens] = field(default_factory=dict)
    """Right answers as token ids by context; the oracle's alone."""


class PathwayEngine:
    """Scores questions with pathways of their own.

    Args:
        trace: what is written of each question.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: C3PO.Config,
        layers: list[int],
        references: ReferenceSet,
        budget: Budget,
        trace: Trace | None = None,
    ):
        self.budget, self.trace = budget, trace
        self.asked = Asked()
        self.tails = PromptTails(model.model, layers[0], named_tokens(settings.tokens))
        self.optimize = PathwayOptimizer(model, settings, layers, references, self.tails, budget)

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far; those of optimization go through the later layers only."""
        return self.tails.tokens_in

    def score(self, questions: list[Question], on_scores: Callable[[int, Scores], None]) -> None:
        """Score all questions; `on_scores(index, scores)` is called as soon as a question is done."""
        for start in range(0, len(questions), AT_ONCE):
            for i, scores in enumerate(self._scored(questions[start : start + AT_ONCE]), start):
                on_scores(i, scores)

    def _scored(self, questions: list[Question]) -> list[Scores]:
        for question in questions:
            check_length(self.tails.span, question.context, self.asked.prompts[tuple(question.context)])
        tails = self.tails.read(
            [question.context for question in questions],
            self.budget,
            [question.continuations for question in questions],
        )
        if self.trace is None:
            return self._scores(tails, self._optimized(questions, tails).pathways)
        states: list[list[Scores]] = []
        found = self._optimized(
            questions, tails, lambda pathways: states.append(self._scores(tails, pathways))
        )
        texts = [
            (self.asked.prompts[tuple(q.context)], [self._text(q, c) for c in q.continuations])
            for q in questions
        ]
        self.trace.write(texts, found, states, self.optimize.references)
        return states[-1]

    def _scores(self, tails: Sequence[PromptTail], pathways: Pathways) -> list[Scores]:
        return self.tails.score(tails, pathways.remix("topk"))

    def _optimized(
        self, questions: list[Question], tails: list[PromptTail], watch: Watch = unwatched
    ) -> Optimized:
        contexts = [tuple(question.context) for question in questions]
        own = None
        if self.asked.golds:
            own = self.tails.read(
                contexts, self.budget, [[self.asked.golds[context]] for context in contexts]
            )
        return self.optimize([self.asked.prompts[context] for context in contexts], tails, own, watch)

    def _text(self, question: Question, continuation: Sequence[int]) -> str:
        return self.asked.continuations[tuple(question.context), tuple(continuation)]
