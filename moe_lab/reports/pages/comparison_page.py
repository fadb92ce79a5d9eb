"""`comparison.html`: differences between stored evaluations, and the changed answers.

It lies next to comparison.json.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moe_lab.reports.comparison import comparison_columns, comparison_marks
from moe_lab.reports.pages.answer_kinds import TO_RIGHT, TO_WRONG
from moe_lab.reports.pages.answers import answer_of
from moe_lab.reports.pages.page import differences_picture, write_page
from moe_lab.reports.pages.shown_answers import answer_data, shown_answer
from moe_lab.reports.score_line import ScoreLine
from moe_lab.reports.verdicts import by_outcome, conclusion
from moe_lab.results.comparisons.comparison import Comparison
from moe_lab.results.score_table import explained_marks

KINDS = {"to_right": TO_RIGHT, "to_wrong": TO_WRONG}


def write_comparison_page(comparison: Comparison, path: Path) -> Path:
    """Write the page of a comparison (docs/results.md) and return its path. Raises ResultsError."""
    evaluations = {evaluation.key: evaluation for evaluation in comparison.evaluations}
    names = {key: f"{evaluation.label} ({key})" for key, evaluation in evaluations.items()}
    compared_names = [name for key, name in names.items() if key != "a"]
    lines = [ScoreLine(score, names[score.run_id]) for score in comparison.scores]
    answers = list(_changed_answers(comparison, names))
    return write_page(
        path,
        "comparison.html.j2",
        title=f"{' and '.join(compared_names)} against {names['a']}",
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
        marks=explained_marks(comparison_marks(comparison)),
    )


def _changed_answers(comparison: Comparison, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The answers of the documents that are right in one evaluation and wrong in another."""
    for (key, task, metric_key, _), changed in comparison.changed.items():
        metric = metric_key.partition(",")[0]
        for way, kind in KINDS.items():
            is_right = kind == TO_RIGHT
            for sample_a, sample in changed[way]:
                answer_a = answer_of(sample_a, metric)
                answer = answer_of(sample, metric)
                if answer_a is None or answer is None:
                    continue  # a text that is scored as a whole has no answer
                yield shown_answer(
                    [answer_a, answer],
                    [not is_right, is_right],
                    kind,
                    right=is_right,
                    run=f"{names[key]}, {metric_key}",
                    task=task,
                    document=sample_a.document,
                )
