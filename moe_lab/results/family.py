"""One correction for the comparisons of each question of a command.

Each view of a command (terminal, tables, pages, figures, data frame) quotes the same corrected p,
so that a difference is significant in all of them or in none.
"""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from moe_lab.results.model import BASE
from moe_lab.results.score import ComparisonKey, Score
from moe_lab.results.significance import holm

SCORES, CONTROLS, EXPERT_METRICS = "scores", "controls", "expert metrics"
"""The questions of a command: the scores that were asked for, their controls (a comparison with
another run than the base model's, and the scores of a run that was not asked for, such as
calibration), and what `metrics=` measured. Adding one leaves the corrected p of the others as they
are."""


@dataclass(frozen=True)
class Family:
    """The comparisons of a command that have a p, with their p corrected by Holm for the number of
    their question."""

    corrected: Mapping[ComparisonKey, float]
    questions: Mapping[ComparisonKey, str]

    @classmethod
    def of(
        cls, p_values: Mapping[ComparisonKey, float | None], controls: Container[str] = ()
    ) -> Self:
        """The families of uncorrected p-values; a comparison whose p is None is in none.

        Args:
            controls: the ids of runs that were not asked for.
        """
        by_question: dict[str, dict[ComparisonKey, float]] = {}
        for comparison, p in p_values.items():
            if p is not None:
                question = _question(comparison, controls)
                by_question.setdefault(question, {})[comparison] = p
        corrected: dict[ComparisonKey, float] = {}
        questions: dict[ComparisonKey, str] = {}
        for question, family in by_question.items():
            for comparison, p in zip(family, holm(list(family.values())), strict=True):
                if p is not None:
                    corrected[comparison] = p
                    questions[comparison] = question
        return cls(corrected, questions)

    @cached_property
    def tests(self) -> Counter[str]:
        """The number of comparisons by question."""
        return Counter(self.questions.values())

    def correct(self, score: Score) -> Score:
        """The score with `p_holm`, `question` and `family`.

        They are None for a comparison that is in no family, such as that of one seed.
        """
        question = self.questions.get(score.comparison)
        family = self.tests[question] if question else None
        return replace(
            score, p_holm=self.corrected.get(score.comparison), question=question, family=family
        )

    @property
    def note(self) -> str:
        """What a view says of the correction: the number of comparisons of each question; empty if
        none has two."""
        if max(self.tests.values(), default=0) < 2:
            return ""
        return ", ".join(f"{question}: {count}" for question, count in self.tests.items())


def _question(comparison: ComparisonKey, controls: Container[str]) -> str:
    """The question of a comparison: EXPERT_METRICS, CONTROLS or SCORES."""
    run_id, _, metric, other = comparison
    if metric.startswith("expert."):
        return EXPERT_METRICS
    if other != BASE or run_id in controls:
        return CONTROLS
    return SCORES


NO_COMPARISONS = Family({}, {})
