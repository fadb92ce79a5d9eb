"""`comparison.html` next to comparison.json: differences between stored evaluations, and the changed answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moe_lab.reports.comparison import comparison_columns
from moe_lab.reports.pages.answers import TO_RIGHT, TO_WRONG, answer_data, answer_of, shown_answer
from moe_lab.reports.pages.page import differences_picture, write_page
from moe_lab.reports.score_line import ScoreLine
from moe_lab.reports.verdicts import by_outcome, conclusion
from moe_lab.results.comparisons.comparison import Comparison
from moe_lab.results.score_table import explained_marks

KINDS = {"to_right": TO_RIGHT, "to_wrong": TO_WRONG}


def write_comparison_page(comparison: Comparison, path: Path) -> Path:
    """Write the page of a comparison (docs/results.md) and return its path. Raises ResultsError."""
    evaluations = {one.key: one for one in comparison.evaluations}
    names = {key: f"{one.label} ({key})" for key, one in evaluations.items()}
    lines = [ScoreLine(score, names[score.run_id]) for score in comparison.scores]
    answers = list(_changed_answers(comparison, names))
    return write_page(
        path,
        "comparison.html.j2",
        title=f"{' and '.join(name for key, name in names.items() if key != 'a')} against {names['a']}",
        evaluations=evaluations,
        scores=comparison_columns(comparison),
        ids=[{"data-other": score.run_id} for score in comparison.scores],
        conclusion=conclusion(lines, "a"),
        verdicts=by_outcome(lines),
        differences=differences_picture(lines),
        answers=answers,
        answer_data=answer_data(answers),
        kinds=list(KINDS.values()),
        notes=comparison.notes,
        marks=explained_marks(mark for one in comparison.evaluations for mark in one.marks),
    )


def _changed_answers(comparison: Comparison, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The answers of the documents that are right in one evaluation and wrong in another."""
    for (key, task, named, _), changed in comparison.changed.items():
        metric = named.partition(",")[0]
        for way, kind in KINDS.items():
            right = kind == TO_RIGHT
            for samples in changed[way]:
                before, after = (answer_of(sample, metric) for sample in samples)
                if before is None or after is None:
                    continue  # a text that is scored as a whole has no answer
                place = {
                    "run": f"{names[key]}, {named}",
                    "task": task,
                    "document": samples[0].document,
                }
                yield shown_answer([before, after], [not right, right], kind, right=right, **place)
