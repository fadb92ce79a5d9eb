"""Scoring and generation for models that are run as rows over a cache with columns (`rows.py`)."""

from __future__ import annotations

from collections.abc import Callable

from moe_lab.engine.engine import Engine
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import RowForward
from moe_lab.engine.forward.memory_bound import Store, store_on
from moe_lab.engine.generation.generate import Choose, Finished, generate
from moe_lab.engine.generation.prefill import Answer
from moe_lab.engine.generation.prefix_cache import CleanPasts
from moe_lab.engine.scoring.scoring import Budget, Question, Scores, score
from moe_lab.engine.scoring.two_phase import KeptQuestions


class RowEngine(Engine):
    """Batches of prompts and questions, over pasts that they share.

    Args:
        reuse: keep clean work between calls, within a share of the free memory.
    """

    def __init__(self, forward: RowForward, budget: Budget, reuse: bool = False):
        self.forward, self.budget = forward, budget
        ensemble, device = forward.ensemble, forward.device
        self._pasts = CleanPasts(store_on(device)) if reuse else None
        self._kept: KeptQuestions | None = None
        if reuse or (ensemble.n > 1 and not ensemble.own_history):
            store = store_on(device) if reuse else Store(0)
            self._kept = KeptQuestions(forward.model, ensemble.first_noisy, store, spare=reuse)

    @property
    def tokens_in(self) -> int:
        return self.forward.tokens_in + (self._kept.tokens_in if self._kept else 0)

    def set_ensemble(self, ensemble: Ensemble) -> None:
        """Raises ValueError where kept work parts at a later layer than the ensemble's first noisy one."""
        kept_rows = self._kept and ensemble.n > 1 and ensemble.cache == "clean"
        if self._kept and kept_rows and ensemble.first_noisy < self._kept.first_noisy:
            raise ValueError(
                f"first_noisy={ensemble.first_noisy}, but kept work parts at MoE layer {self._kept.first_noisy}."
            )
        forward = RowForward(self.forward.model, ensemble)
        forward.tokens_in = self.forward.tokens_in
        self.forward = forward

    def score(self, questions: list[Question], on_scores: Callable[[int, Scores], None]) -> None:
        ensemble = self.forward.ensemble
        if self._kept and ensemble.cache == "clean":
            self._kept.score(ensemble, questions, self.budget, on_scores)
        else:
            with self.forward as forward:
                score(forward, questions, self.budget, on_scores)

    def generate(
        self,
        answers: list[Answer],
        choose: Choose,
        finished: Finished,
        max_new_tokens: int,
        on_done: Callable[[Answer], None],
    ) -> None:
        with self.forward as forward:
            generate(forward, answers, self.budget, choose, finished, max_new_tokens, on_done, self._pasts)
