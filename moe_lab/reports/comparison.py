"""What mode=compare prints: the evaluations, the table of their differences, and the verdict."""

from moe_lab.config.terminal import one_line, print_line
from moe_lab.reports.columns import Column, count, numbers, print_table, texts
from moe_lab.reports.score_columns import difference_columns
from moe_lab.reports.score_line import ScoreLine
from moe_lab.reports.verdicts import conclusion
from moe_lab.results.comparisons.comparison import Comparison
from moe_lab.results.measured import number
from moe_lab.results.score_table import explained_marks


def print_comparison(comparison: Comparison) -> None:
    """Print the evaluations, a row per evaluation, task and metric, and the notes."""
    for evaluation in comparison.evaluations:
        print_line(f"{evaluation.key}: {evaluation.label}, {one_line(evaluation.file)}")
        details = list(evaluation.marks)
        if evaluation.settings:
            details.insert(0, evaluation.settings)
        if details:
            print_line(f"   {'  '.join(details)}")

    print_table("Compared with a", comparison_columns(comparison))

    lines = [ScoreLine(score, score.run_id) for score in comparison.scores]
    print_line(conclusion(lines, "a"))
    for line in [*explained_marks(comparison_marks(comparison)), *comparison.notes]:
        print_line(line)


def comparison_marks(comparison: Comparison) -> list[str]:
    """The notes of all evaluations, such as PARTIAL."""
    marks: list[str] = []
    for evaluation in comparison.evaluations:
        marks += evaluation.marks
    return marks


def comparison_columns(comparison: Comparison) -> list[Column]:
    """One row per evaluation, task and metric; p corrected by Holm where there are several rows."""
    scores = comparison.scores
    columns = [
        Column(heading="with", cells=[score.run_id for score in scores], name=True),
        Column(heading="task", cells=[score.task for score in scores], name=True),
        Column(heading="metric", cells=[score.metric for score in scores], name=True),
        numbers("n", [score.n for score in scores], count, name=True),
        numbers("a", [score.baseline for score in scores], number),
        numbers("other", [score.value for score in scores], number),
    ]
    columns += difference_columns(scores)
    columns.append(texts("verdict", [score.verdict for score in scores]))
    return columns
