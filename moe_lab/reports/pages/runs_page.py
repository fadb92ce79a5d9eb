"""The page of a grid, in `outputs/pages/`: verdict, scores, the answers that changed, routing, cost, provenance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.reports.columns import Column, count, numbers, texts
from moe_lab.reports.pages.answers import ALONE, CHANGES, MOST, answer_data, shown_answers
from moe_lab.reports.pages.page import (
    differences_picture,
    latex_of,
    pictures_in,
    text_uri,
    write_page,
)
from moe_lab.reports.plotted import plotted
from moe_lab.reports.scores import CommandTable
from moe_lab.reports.verdicts import by_outcome, conclusion, has_verdict
from moe_lab.results.atomic import csv_text
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import explained_marks


def write_runs_page(table: CommandTable, path: Path) -> Path:
    """Write the page of some runs and return its path. Raises ResultsError.

    The page shows a run's answers next to those of its baseline, if both sample logs are stored.
    """
    runs, title = table.runs, _title(table.runs)
    names = [
        f"{run.method.name} on {', '.join(run.task.names)}" + (f" ({label})" if label else "")
        for run, label in zip(runs, table.labels, strict=True)
    ]
    columns = table.columns(table.lines)
    compared = [line for line in table.lines if has_verdict(line.score)]
    answers, problems = shown_answers(runs, names)
    routing = [
        each for run, name in zip(runs, names, strict=True) if (each := routing_of(run, name))
    ]
    rows = [line.score.columns() | {"settings": line.label} for line in table.lines]
    return write_page(
        path,
        "runs.html.j2",
        title=title,
        models=list(dict.fromkeys(run.model.name for run in runs)),
        conclusion=conclusion(compared),
        verdicts=by_outcome(compared) if len(compared) > 1 else {},
        count=len(compared),
        differences=differences_picture(plotted(table.lines)),
        scores=columns,
        ids=[{"data-run": line.score.run_id} for line in table.lines],
        csv=text_uri(csv_text(rows), "csv"),
        latex=text_uri(latex_of(columns, title), "x-tex"),
        answers=answers[:MOST],
        documents=sum(one["kind"] not in ALONE for one in answers),
        changed=sum(one["changed"] for one in answers),
        left_out=max(0, len(answers) - MOST),
        problems=problems,
        answer_data=answer_data(answers[:MOST]),
        kinds=[kind for kind in CHANGES[:-1] if any(one["kind"] == kind for one in answers)],
        routing=routing,
        facts=facts_columns(routing),
        profiles=profiles_of(routing),
        costs=cost_columns(runs, names),
        runs=runs,
        notes=explained_marks(mark for line in table.lines for mark in line.score.marks),
    )


def _title(runs: Sequence[RunResult]) -> str:
    """The methods and tasks of the runs. The base model is named only if nothing else ran."""
    methods = list(dict.fromkeys(run.method.name for run in runs))
    tasks = list(dict.fromkeys(task for run in runs for task in run.task.tasks))
    shown = ", ".join(tasks) if len(tasks) <= 4 else f"{len(tasks)} tasks"
    return f"{', '.join([name for name in methods if name != 'base'] or methods)} on {shown}"


def cost_columns(runs: Sequence[RunResult], names: Sequence[str]) -> list[Column]:
    """The cost of each run."""

    def column(heading: str, key: str, text: Callable[[Any], str]) -> Column:
        return numbers(heading, [getattr(run.cost, key) for run in runs], text)

    return [
        texts("run", names),
        numbers("routing samples", [run.method.settings.get("n") for run in runs], count),
        column("seconds", "wall_seconds", "{:.1f}".format),
        column("seconds of loading", "load_seconds", "{:.1f}".format),
        column("tokens in", "tokens_in", count),
        column("tokens out", "tokens_out", count),
        column("tokens/s", "tokens_per_second", count),
        column("peak memory, GiB", "peak_memory_bytes", lambda value: f"{value / 2**30:.2f}"),
        column("near ties", "near_ties", count),
        texts("device", [run.cost.device or "" for run in runs]),
    ]


# The routing of runs: temperatures, changed decisions, the load of experts


@dataclass(frozen=True)
class RunRouting:
    """The routing of one run."""

    label: str
    facts: dict[str, str | int | float]
    """Its study, and the single numbers and words of the method's report in results.json."""
    temperatures: tuple[float, ...]
    """One per MoE layer; empty for a method without."""
    pictures: list[tuple[str, str]]
    """Name and data URI of the figures in the run's folder."""


def routing_of(run: RunResult, label: str) -> RunRouting | None:
    """The routing of a run; None if nothing about it is stored."""
    stored = {"study": run.tuning.get("study"), **run.report}
    facts = {key: value for key, value in stored.items() if isinstance(value, str | int | float)}
    pictures = pictures_in(run.stored_in)
    temperatures = tuple(run.report.get("temperatures") or ())
    return RunRouting(label, facts, temperatures, pictures) if facts or pictures else None


def profiles_of(routing: Sequence[RunRouting]) -> dict[tuple[float, ...], list[str]]:
    """The different temperatures of all runs, each with the labels of its runs, in the order of the runs."""
    labels: dict[tuple[float, ...], list[str]] = {}
    for one in routing:
        if one.temperatures:
            labels.setdefault(one.temperatures, []).append(one.label)
    return labels


def facts_columns(routing: Sequence[RunRouting]) -> list[Column]:
    """What the methods report, a row per run."""

    def text(value: str | int | float) -> str:
        return str(value) if isinstance(value, str | bool) else f"{value:.6g}"

    shown = [one for one in routing if one.facts]
    return [
        texts("run", [one.label for one in shown]),
        *(
            numbers(name.replace("_", " "), [one.facts.get(name) for one in shown], text)
            for name in dict.fromkeys(name for one in shown for name in one.facts)
        ),
    ]
