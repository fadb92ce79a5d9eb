"""Clean work kept between calls, for callers that ask the same again under other temperatures (tuning).

Rows read a clean history, so what the untouched model computed for a question or a prompt serves every ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from moe_lab.engine.forward.batch import TreeRow
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.memory_bound import Store
from moe_lab.engine.forward.prefixes import group_by_prefix
from moe_lab.engine.scoring.noisy_rows import CleanForward, CleanWork, KeptRowForward, Piece
from moe_lab.engine.scoring.scoring import Budget, Question, Scores, batches, read_scores

PIECE_ROWS = 128
"""Noisy rows of one question that go side by side. Attention scores each of them against all others, for nothing; with
fewer, the past is copied more often (measured behind 100 to 900 tokens: 128 and 256 are best)."""


@dataclass(frozen=True)
class Answered:
    """A question as the untouched model scores it, and what its noisy rows need."""

    plain: Scores
    work: CleanWork

    @property
    def nbytes(self) -> int:
        return self.work.nbytes


class KeptQuestions:
    """Scores questions as `scoring.score` does, and keeps their clean work.

    Args:
        first_noisy: the first MoE layer that any ensemble to come may make noisy.
        store: what keeps the work; an empty bound keeps none.
        spare: answer an ensemble without noise by the untouched model's scores, which its rows would only repeat.
    """

    def __init__(self, model: nn.Module, first_noisy: int, store: Store[Answered], spare: bool = True):
        self.first_noisy, self.store, self.spare = first_noisy, store, spare
        self.clean = CleanForward(model, first_noisy)
        self._noisy_tokens_in = 0

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far, rows included, padding excluded."""
        return self.clean.tokens_in + self._noisy_tokens_in

    def score(
        self,
        ensemble: Ensemble,
        questions: Sequence[Question],
        budget: Budget,
        on_scores: Callable[[int, Scores], None],
    ) -> None:
        """As `scoring.score`."""
        known: dict[int, Answered] = {}
        missing: list[int] = []
        for i, question in enumerate(questions):
            if kept := self.store.get(_key(question)):
                known[i] = kept
            else:
                missing.append(i)
        self._answer(ensemble, questions, known, budget, on_scores)
        computing = self._compute(questions, missing, budget)
        while True:
            with self.clean:
                found = next(computing, None)
            if found is None:
                return
            self._answer(ensemble, questions, found, budget, on_scores)

    def _compute(
        self, questions: Sequence[Question], missing: list[int], budget: Budget
    ) -> Iterator[dict[int, Answered]]:
        """Clean work of those that are not kept, batch by batch; run inside `self.clean`."""
        asked = [questions[i] for i in missing]
        for group in group_by_prefix([question.context for question in asked]):
            for batch in batches(self.clean, asked, group, budget):
                plain = read_scores(self.clean.ensemble, batch.trees, batch.passes(self.clean, budget))
                works = self.clean.work(batch.trees, batch.cache, group.shared)
                found = {
                    missing[i]: Answered(p, w) for i, p, w in zip(batch.indices, plain, works, strict=True)
                }
                for i, answered in found.items():
                    self.store.add(_key(questions[i]), answered)
                yield found

    def _answer(
        self,
        ensemble: Ensemble,
        questions: Sequence[Question],
        answered: dict[int, Answered],
        budget: Budget,
        on_scores: Callable[[int, Scores], None],
    ) -> None:
        if ensemble.n == 1 or (self.spare and ensemble.noiseless):
            for i, kept in answered.items():
                on_scores(i, kept.plain)
            return
        with KeptRowForward(self.clean.model, ensemble, self.first_noisy) as forward:
            for indices in _together(answered, ensemble.n, budget):
                trees = [TreeRow(questions[i].context, questions[i].continuations) for i in indices]
                logits = (
                    forward(pieces) for pieces in _passes([answered[i] for i in indices], ensemble.n, budget)
                )
                found = read_scores(ensemble, trees, logits)
                self._noisy_tokens_in, forward.tokens_in = self._noisy_tokens_in + forward.tokens_in, 0
                for i, scores in zip(indices, found, strict=True):
                    on_scores(i, scores)


def _key(question: Question) -> Hashable:
    return question.document, tuple(question.context), tuple(map(tuple, question.continuations))


def _together(answered: dict[int, Answered], n: int, budget: Budget) -> Iterator[list[int]]:
    """Questions whose rows go through one pass, or one whose rows take several; longest first."""
    batch: list[int] = []
    rows = 0
    for i in sorted(answered, key=lambda i: -answered[i].work.past.length):
        own = len(answered[i].work.position_M) * (n - 1)
        if batch and (rows + own > budget.tokens or len(batch) == budget.sequences):
            yield batch
            batch, rows = [], 0
        batch.append(i)
        rows += own
    if batch:
        yield batch


def _passes(answered: list[Answered], n: int, budget: Budget) -> Iterator[list[Piece]]:
    """The wanted tokens of these questions in order, as pieces of at most `PIECE_ROWS`, each pass within the budget."""
    most = max(1, min(PIECE_ROWS, budget.tokens) // (n - 1))
    at_once = max(1, budget.tokens // (most * (n - 1)))
    pieces = [
        Piece(kept.work, start, min(start + most, len(kept.work.position_M)))
        for kept in answered
        for start in range(0, len(kept.work.position_M), most)
    ]
    for start in range(0, len(pieces), at_once):
        yield pieces[start : start + at_once]
