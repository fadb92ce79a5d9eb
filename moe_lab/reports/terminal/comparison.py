"""The table of a comparison on the terminal."""

from __future__ import annotations

from moe_lab.config.terminal import one_line
from moe_lab.reports.terminal.layout import (
    Cells,
    TextTable,
    cells_of,
    names,
    numbers,
    print_text_table,
    text_table,
)
from moe_lab.reports.terminal.results import HOLM, NOT_CORRECTED, OF_ONE_RUN, P, comparison_columns, documents
from moe_lab.results.comparisons.comparison import Comparison
from moe_lab.results.measured import number
from moe_lab.results.score_table import explained_marks
from moe_lab.results.significance import ALPHA

SHOWN_FLIPS = 10
"""Most document numbers in a line of changed answers."""


def print_comparison(comparison: Comparison) -> None:
    """Print the evaluations, a row per evaluation, task and metric, the first changed answers, and the notes."""
    for evaluation in comparison.evaluations:
        print(f"{evaluation.key}: {evaluation.label}, {one_line(evaluation.file)}")
        if below := "  ".join([*filter(None, [evaluation.settings]), *evaluation.marks]):
            print(f"   {below}")
    other = _other(comparison)
    explained = {
        "n": "documents.",
        "a": f"the metric in a, and beside it in {other}; rates are fractions.",
        "difference": f"{other} minus a. Its interval is {NOT_CORRECTED}.",
        P: f"{OF_ONE_RUN}.",
        HOLM: f"{OF_ONE_RUN}, corrected for all rows.",
        "changed": f"answers, + wrong in a and right in {other}, - the other way round.",
        "significant": f"whether p is below {ALPHA}, and {other} better or worse.",
    }
    print_text_table(comparison_table(comparison), explained)
    marks = explained_marks(mark for evaluation in comparison.evaluations for mark in evaluation.marks)
    for line in [*flip_lines(comparison), *marks, *comparison.notes]:
        print(one_line(line))


def comparison_table(comparison: Comparison) -> TextTable:
    """One row per evaluation, task and metric; p corrected by Holm where there are several rows."""
    scores, other = comparison.scores, _other(comparison)
    of_row: Cells = {"with": lambda score: score.run_id} if other != "b" else {}
    of_row |= {"task": lambda score: score.task, "metric": lambda score: score.metric}
    values: Cells = {
        "n": documents,
        "a": lambda score: number(score.baseline),
        other: lambda score: number(score.value),
    }
    significant = {"significant": [one.verdict if one.significant or one.equal else "no" for one in scores]}
    columns = [*names(cells_of(scores, of_row)), *numbers(cells_of(scores, values), shared=["n"])]
    return text_table("Compared with a", [*columns, *comparison_columns(scores), *numbers(significant)])


def flip_lines(comparison: Comparison) -> list[str]:
    """The numbers of the first documents whose answers changed, a line per row of the table and direction."""
    lines = []
    for (other, task, metric, _), changed in comparison.changed.items():
        for kind, way in (
            ("to_right", f"wrong in a and right in {other}"),
            ("to_wrong", f"right in a and wrong in {other}"),
        ):
            if documents := changed[kind]:
                left = len(documents) - SHOWN_FLIPS
                more = f" and {left:,} more" if left > 0 else ""
                lines.append(f"{task} {metric}, {way}: {', '.join(map(str, documents[:SHOWN_FLIPS]))}{more}")
    return lines


def _other(comparison: Comparison) -> str:
    """The name of the evaluation that is compared with `a`: "b", or "other" for several."""
    return "b" if len(comparison.evaluations) == 2 else "other"
