"""`comparison.html` next to comparison.json: differences between stored evaluations, and the changed answers."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.csv_rows import csv_text
from moe_lab.reports.pages.answers import TO_RIGHT, TO_WRONG, answer_data, answer_of, shown_answer
from moe_lab.reports.pages.page import latex_of, text_uri, write_page
from moe_lab.reports.pages.plots import forest
from moe_lab.reports.provenance import not_shared
from moe_lab.reports.scores import ScoreLine, by_outcome, conclusion
from moe_lab.reports.terminal import comparison_columns
from moe_lab.results.comparisons.comparison import Comparison
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.score_table import explained_marks

KINDS = {"to_right": TO_RIGHT, "to_wrong": TO_WRONG}


def write_comparison_page(comparison: Comparison, path: Path) -> Path:
    """Write the page of a comparison (docs/results.md) and return its path. Raises ResultsError."""
    evaluations = {one.key: one for one in comparison.evaluations}
    labels = {one.key: f"{one.label} ({one.key})" for one in comparison.evaluations}
    names = distinct_names(comparison.evaluations)
    lines = [ScoreLine(score, names[score.run_id]) for score in comparison.scores]
    answers = list(_changed_answers(comparison, labels))
    columns = comparison_columns(comparison)
    title = f"{' and '.join(name for key, name in names.items() if key != 'a')} against {names['a']}"
    return write_page(
        path,
        "comparison.html.j2",
        title=title,
        evaluations=evaluations,
        scores=columns,
        ids=[{"data-other": score.run_id} for score in comparison.scores],
        conclusion=conclusion(lines, "a"),
        verdicts=by_outcome(lines),
        forest=forest(lines),
        answers=answers,
        answer_data=answer_data(answers),
        kinds=list(KINDS.values()),
        notes=comparison.notes,
        marks=explained_marks(mark for one in comparison.evaluations for mark in one.marks),
        csv=text_uri(csv_text([score.columns() for score in comparison.scores]), "csv"),
        latex=text_uri(latex_of(columns, title), "x-tex"),
    )


def distinct_names(evaluations: Sequence[Evaluation]) -> dict[str, str]:
    """A name for each evaluation, by key: the settings that not all evaluations share, else its label and key.

    `method=base task=gsm8k` and `method=roe method.n=8 task=gsm8k` are `base` and `roe, method.n=8`.
    """
    own = not_shared([one.settings.split() for one in evaluations])
    names = {
        one.key: ", ".join(text.removeprefix("method=").removeprefix("model=") for text in shown)
        for one, shown in zip(evaluations, own, strict=True)
    }
    if all(names.values()) and len(set(names.values())) == len(names):
        return names
    distinct = len({one.label for one in evaluations}) == len(evaluations)
    return {one.key: one.label if distinct else f"{one.label} ({one.key})" for one in evaluations}


def _changed_answers(comparison: Comparison, labels: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The answers of the documents that are right in one evaluation and wrong in another."""
    for (key, task, named, _), changed in comparison.changed.items():
        metric = named.partition(",")[0]
        for way, kind in KINDS.items():
            right = kind == TO_RIGHT
            for samples in changed[way]:
                before, after = (answer_of(sample, metric) for sample in samples)
                if before is None or after is None:
                    continue  # a text that is scored as a whole has no answer
                place = {"run": f"{labels[key]}, {named}", "task": task, "document": samples[0].document}
                yield shown_answer([before, after], [not right, right], kind, right=right, **place)
