"""The scores of a command by configuration, and the p of their comparisons."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moe_lab.results.family import Family
from moe_lab.results.marks import MARKS
from moe_lab.results.means import mean_score
from moe_lab.results.model import BASE, RunResult, compared_names
from moe_lab.results.score import ComparisonKey, Score
from moe_lab.results.scores import shown_scores
from moe_lab.results.seed_summary import SeedSummary


@dataclass(frozen=True)
class SeedGroup:
    """The results of one configuration: one per seed."""

    results: Sequence[RunResult]
    summary: SeedSummary | None = None
    """Of several."""
    file: Path | None = None
    """Where the summary belongs (`moe_lab.runs.summaries.write_summaries`)."""

    def scores(self, other: str = BASE) -> list[Score]:
        """The scores of the run, or the means over its seeds."""
        scores_of_seeds = [shown_scores(result, other) for result in self.results]
        if len(scores_of_seeds) == 1 or self.summary is None:
            return scores_of_seeds[0]
        means = []
        for scores_of_metric in zip(*scores_of_seeds, strict=True):
            means.append(mean_score(scores_of_metric, self.summary.scores))
        return means


def family_of(
    groups: Sequence[SeedGroup],
    measured: Mapping[ComparisonKey, float | None] | None = None,
    controls: Container[str] = (),
) -> Family:
    """The families of the comparisons of a command's scores with base and with each other run.

    Args:
        measured: further comparisons with their uncorrected p: those of expert metrics.
        controls: as in `Family.of`.
    """
    return Family.of({**p_values_of(groups), **(measured or {})}, controls)


def p_values_of(groups: Iterable[SeedGroup]) -> dict[ComparisonKey, float | None]:
    """The uncorrected p of each comparison of the groups' scores with base and with each other
    run."""
    p_values: dict[ComparisonKey, float | None] = {}
    for group in groups:
        for other in (BASE, *compared_names(group.results)):
            for score in group.scores(other):
                p_values[score.comparison] = score.p
    return p_values


def explained_marks(marks: Iterable[str]) -> list[str]:
    """What the marks mean, each once."""
    shown = set(marks)
    return [text for mark, text in MARKS.items() if mark in shown]
