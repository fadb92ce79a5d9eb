"""The answers of two runs to the same documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moe_lab.reports.pages.answer import Answer, answer_of
from moe_lab.reports.scores import headline
from moe_lab.results.samples import metric_values


@dataclass(frozen=True)
class AnswerPair:
    """Two answers to one document."""

    number: int
    """Of the document."""
    before: Answer
    after: Answer
    line: dict[str, Any]
    """Of the later run's sample log."""
    scores: tuple[Any, Any]
    """The headline metric's values."""
    lower_is_better: bool

    @property
    def right(self) -> tuple[bool, bool] | None:
        """Whether each answer is right; None of scores that are not 0 or 1."""
        if any(score not in (0, 1) for score in self.scores):
            return None
        before, after = ((score == 1) is not self.lower_is_better for score in self.scores)
        return before, after

    @property
    def flipped(self) -> bool:
        """Whether one answer is right and the other wrong."""
        return self.right is not None and self.right[0] is not self.right[1]


def answer_pairs(
    results: Mapping[str, Any],
    task: str,
    before: Sequence[dict[str, Any]],
    after: Sequence[dict[str, Any]],
) -> Iterator[AnswerPair]:
    """The answers to each document of a task, by the filter of its headline metric.

    Texts that are scored as a whole have none.

    Args:
        results: the later run's results.json.
        before, after: the lines of both sample logs.
    """
    key = headline(results["results"][task], results["moe_lab"]["task"].get("metric"))
    metric, _, filter_name = key.partition(",")
    lower = results.get("higher_is_better", {}).get(task, {}).get(metric) is False
    values = [metric_values(list(lines)).get(key, {}) for lines in (before, after)]
    earlier = {line["doc_id"]: line for line in before if line["filter"] == filter_name}
    for line in (each for each in after if each["filter"] == filter_name and each["doc_id"] in earlier):
        number = line["doc_id"]
        without, own = answer_of(earlier[number], metric), answer_of(line, metric)
        if without is not None and own is not None:
            scores = values[0].get(number), values[1].get(number)
            yield AnswerPair(number, without, own, line, scores, lower)
