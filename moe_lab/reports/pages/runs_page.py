"""The page of a grid, in `outputs/pages/`.

It has the verdict, scores, the answers that changed, routing, cost and provenance.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.columns import Column, count, numbers, texts
from moe_lab.reports.pages.answer_kinds import ALONE, CHANGED, CHANGES
from moe_lab.reports.pages.latex import latex_of
from moe_lab.reports.pages.page import differences_picture, text_uri, write_page
from moe_lab.reports.pages.run_answers import shown_answers
from moe_lab.reports.pages.run_routing import facts_columns, profiles_of, routing_of
from moe_lab.reports.pages.shown_answers import answer_data
from moe_lab.reports.plotted import plotted
from moe_lab.reports.scores import CommandTable
from moe_lab.reports.verdicts import by_outcome, conclusion, has_verdict
from moe_lab.results.atomic import csv_text
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import explained_marks

MOST = 20_000
"""Answers on one page."""
LISTED_TASKS = 4
"""Most tasks that a title names."""


def write_runs_page(table: CommandTable, path: Path) -> Path:
    """Write the page of some runs and return its path. Raises ResultsError.

    The page shows a run's answers next to those of its baseline, if both sample logs are stored.
    """
    runs = table.runs
    title = _title(runs)
    names = [_name(run, label) for run, label in zip(runs, table.labels, strict=True)]
    scores = table.columns(table.lines)
    compared = [line for line in table.lines if has_verdict(line.score)]
    answers, problems = shown_answers(runs, names)
    return write_page(
        path,
        "runs.html.j2",
        title=title,
        models=list(dict.fromkeys(run.model.name for run in runs)),
        conclusion=conclusion(compared),
        verdicts=by_outcome(compared) if len(compared) > 1 else {},
        count=len(compared),
        differences=differences_picture(plotted(table.lines)),
        scores=scores,
        ids=[{"data-run": line.score.run_id} for line in table.lines],
        csv=text_uri(_csv(table), "csv"),
        latex=text_uri(latex_of(scores, title), "x-tex"),
        problems=problems,
        **_answers_content(answers),
        **_routing_content(runs, names),
        costs=cost_columns(runs, names),
        runs=runs,
        notes=explained_marks(table.marks),
    )


def _title(runs: Sequence[RunResult]) -> str:
    """The methods and tasks of the runs. The base model is named only if nothing else ran."""
    methods = list(dict.fromkeys(run.method.name for run in runs))
    without_base = [name for name in methods if name != "base"]
    tasks: dict[str, None] = {}
    for run in runs:
        tasks |= dict.fromkeys(run.task.tasks)
    task_text = f"{len(tasks)} tasks"
    if len(tasks) <= LISTED_TASKS:
        task_text = ", ".join(tasks)
    return f"{', '.join(without_base or methods)} on {task_text}"


def _name(run: RunResult, label: str) -> str:
    """`<method> on <tasks> (<settings>)`."""
    name = f"{run.method.name} on {', '.join(run.task.names)}"
    if not label:
        return name
    return f"{name} ({label})"


def _csv(table: CommandTable) -> str:
    """The table as CSV: the columns of `Score.columns`, and the settings."""
    rows = []
    for line in table.lines:
        rows.append(line.score.columns() | {"settings": line.label})
    return csv_text(rows)


def _answers_content(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the template needs of the answers; the page has the first MOST of them.

    `documents` counts the answers that have one of the base model next to them, `left_out` those
    beyond MOST.
    """
    kinds = {answer["kind"] for answer in answers}
    named_kinds = [kind for kind in CHANGES if kind != CHANGED]
    return {
        "answers": answers[:MOST],
        "documents": sum(answer["kind"] not in ALONE for answer in answers),
        "changed": sum(answer["changed"] for answer in answers),
        "left_out": max(0, len(answers) - MOST),
        "answer_data": answer_data(answers[:MOST]),
        "kinds": [kind for kind in named_kinds if kind in kinds],
    }


def _routing_content(runs: Sequence[RunResult], names: Sequence[str]) -> dict[str, Any]:
    """What the template needs of the runs' routing."""
    routings = []
    for run, name in zip(runs, names, strict=True):
        routing = routing_of(run, name)
        if routing is not None:
            routings.append(routing)
    return {
        "routing": routings,
        "facts": facts_columns(routings),
        "profiles": profiles_of(routings),
    }


def cost_columns(runs: Sequence[RunResult], names: Sequence[str]) -> list[Column]:
    """The cost of each run; an empty cell for a number that is missing."""

    def column(heading: str, key: str, text: Callable[[Any], str]) -> Column:
        """A column of a key of `cost`."""
        return numbers(heading, [getattr(run.cost, key) for run in runs], text)

    return [
        texts("run", names),
        numbers("routing samples", [run.method.settings.get("n") for run in runs], count),
        column("seconds", "wall_seconds", "{:.1f}".format),
        column("seconds of loading", "load_seconds", "{:.1f}".format),
        column("tokens in", "tokens_in", count),
        column("tokens out", "tokens_out", count),
        column("tokens/s", "tokens_per_second", count),
        column("peak memory, GiB", "peak_memory_bytes", _gibibytes),
        column("near ties", "near_ties", count),
        texts("device", [run.cost.device or "" for run in runs]),
    ]


def _gibibytes(count_of_bytes: float) -> str:
    """Bytes as GiB with two decimals."""
    return f"{count_of_bytes / 2**30:.2f}"
