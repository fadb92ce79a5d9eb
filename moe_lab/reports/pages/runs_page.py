"""The page of a grid, in `outputs/pages/`: verdict, scores, the answers that changed, routing, cost, provenance."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moe_lab.reports.columns import Column, count, numbers, texts
from moe_lab.reports.csv_rows import csv_text
from moe_lab.reports.expert import expert_metrics_of, layer_columns
from moe_lab.reports.pages.answers import CHANGES, answer_data, examples_of
from moe_lab.reports.pages.page import fact, latex_of, pictures_in, text_uri, write_page
from moe_lab.reports.pages.plots import forest, plot
from moe_lab.reports.papers.metrics import model_folder
from moe_lab.reports.provenance import Provenance
from moe_lab.reports.scores import CommandTable, by_outcome, conclusion, has_verdict, plotted, sentence
from moe_lab.results.measured import number
from moe_lab.results.model import BASE, RunResult
from moe_lab.results.score_table import explained_marks
from moe_lab.results.stored_files import damaged, whole_mapping

# The routing of runs: temperatures, changed decisions, the load of experts

Facts = dict[str, str | int | float]
"""Numbers and words by key."""


def facts_of(content: Mapping[str, object], hidden: Sequence[str] = ()) -> Facts:
    """The values that are a single number or word, without the keys in `hidden`."""
    return {k: v for k, v in content.items() if k not in hidden and isinstance(v, str | int | float)}


@dataclass(frozen=True)
class RunRouting:
    """The routing of one run."""

    label: str
    facts: Facts
    """The single numbers and words of the method's report in results.json."""
    temperatures: tuple[float, ...]
    """One per MoE layer; empty for a method without."""
    layers: list[Column]
    """The expert metrics of each MoE layer (`metrics=expert`)."""
    pictures: list[tuple[str, str]]
    """Name and data URI of the figures in the run's folder."""


def routing_of(run: RunResult, label: str) -> RunRouting | None:
    """The routing of a run; None if nothing about it is stored."""
    report, measured = run.report, expert_metrics_of(run)
    facts = {} if "training" in report else facts_of(report)  # `origin_of` shows those of a training
    layers = [] if measured is None else layer_columns(measured)
    pictures = pictures_in(run.stored_in)
    temperatures = tuple(report.get("temperatures") or ())
    return RunRouting(label, facts, temperatures, layers, pictures) if facts or layers or pictures else None


def profiles_of(routing: Sequence[RunRouting]) -> dict[tuple[float, ...], list[str]]:
    """The different temperatures of all runs, each with the labels of its runs, in the order of the runs."""
    labels: dict[tuple[float, ...], list[str]] = {}
    for one in routing:
        if one.temperatures:
            labels.setdefault(one.temperatures, []).append(one.label)
    return labels


# The origin of temperatures or weights: a study or a training, as pages show it

HIDDEN = ("id", "study_id", "study", "data")
"""Keys whose values do not help a reader."""
OPTUNAS_OWN = ("datetime_", "system_attrs_")
"""Columns of trials.csv that begin so are left out of a page."""
DECIMAL = re.compile(r"-?\d+\.\d+(e-?\d+)?")


@dataclass(frozen=True)
class Origin:
    """A study or a training."""

    title: str
    facts: Facts
    pictures: list[tuple[str, str]]
    """Name and data URI of the figures in its folder."""
    trials: list[Column]
    """Those of a study's trials.csv: number, value, settings, duration in seconds and state."""


def origin_of(folder: Path) -> Origin | None:
    """The study in `outputs/studies` or the training in `outputs/models` with this folder; None if it has no record."""
    if folder.parent.name == "studies":
        study, best = (whole_mapping(folder / name) for name in ("study.json", "best.yaml"))
        if study is None:
            return None
        facts = facts_of(study | (best or {}), HIDDEN)
        return Origin(f"Study {folder.name}", facts, pictures_in(folder), _trials(folder))
    training = whole_mapping(folder / "training.json")
    if training is None:
        return None
    recipe, validation = (training.get(key) or {} for key in ("recipe", "validation"))
    losses = {f"held-out {key}": value for key, value in validation.items()}
    facts = facts_of(training | recipe | losses, HIDDEN)
    return Origin(f"Training {folder.name}", facts, pictures_in(folder), [])


def origins_of(runs: Sequence[RunResult]) -> list[Origin]:
    """The studies and trainings of some runs, each once."""
    folders: list[Path | None] = []
    for run in runs:
        study = run.tuning.get("study")
        folders += [study and run.stored_in.parent.parent / "studies" / study, model_folder(run)]
    found = [origin_of(folder) for folder in dict.fromkeys(folders) if folder]
    return [origin for origin in found if origin is not None]


def write_origin_page(folder: Path) -> Path | None:
    """Write `report.html` of a study or a training into its folder; None if it has no record. Raises ResultsError."""
    origin = origin_of(folder)
    return None if origin is None else write_page(folder / "report.html", "origin.html.j2", origin=origin)


def _trials(folder: Path) -> list[Column]:
    from pandas import Timedelta, read_csv

    path = folder / "trials.csv"
    if not path.is_file():
        return []
    try:
        trials = read_csv(path, dtype=str, keep_default_na=False).fillna("")
        trials = trials.rename(columns={"duration": "seconds"})
        if "seconds" in trials:
            trials["seconds"] = [
                f"{Timedelta(each).total_seconds():.1f}" if each else "" for each in trials["seconds"]
            ]
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    columns = []
    for name in (name for name in trials if not name.startswith(OPTUNAS_OWN)):
        cells = [f"{float(cell):.6g}" if DECIMAL.fullmatch(cell) else cell for cell in trials[name]]
        heading = name.removeprefix("params_").removeprefix("user_attrs_").replace("_", " ")
        columns.append(texts(heading, cells))
    return columns


# The page of a grid, in `outputs/pages/`: verdict, scores, the answers that changed, routing, cost, provenance

FEW = 4
"""At most so many comparisons are said in sentences at the top of the page."""
COSTS = {"wall_seconds": ("seconds without loading", 1.0), "peak_memory_bytes": ("peak memory, GiB", 2.0**30)}
"""The costs that scores are drawn against: the key in `cost`, the label of the axis, and the divisor."""


def write_runs_page(table: CommandTable, path: Path) -> Path:
    """Write the page of some runs and return its path. Raises ResultsError.

    The page shows a run's answers next to those of its baseline, if both sample logs are stored.
    """
    runs = table.runs
    names = [
        f"{run.method} on {', '.join(run.requested)}" + (f" ({label})" if label else "")
        for run, label in zip(runs, table.labels, strict=True)
    ]
    columns = table.columns(table.lines)
    compared = [line for line in table.lines if has_verdict(line.score)]
    examples = examples_of(runs, names)
    routing = [each for run, name in zip(runs, names, strict=True) if (each := routing_of(run, name))]
    rows = [line.score.columns() | {"settings": line.label} for line in table.lines]
    few = 1 < len(compared) <= FEW
    return write_page(
        path,
        "runs.html.j2",
        title=_title(runs),
        models=list(dict.fromkeys(run.model for run in runs)),
        conclusion=conclusion(compared),
        outcome=compared[0].score.verdict if len(compared) == 1 else "",
        leads=[*(map(sentence, compared) if few else ()), *prices(table)],
        verdicts={} if len(compared) <= FEW else by_outcome(compared),
        count=len(compared),
        forest=forest(plotted(table.lines)),
        scores=columns,
        ids=[{"data-run": line.score.run_id} for line in table.lines],
        metrics=metrics_of(runs, names),
        csv=text_uri(csv_text(rows), "csv"),
        latex=text_uri(latex_of(columns, _title(runs)), "x-tex"),
        examples=examples,
        answer_data=answer_data(examples.answers),
        kinds=[kind for kind in CHANGES[:-1] if any(one["kind"] == kind for one in examples.answers)],
        routing=routing,
        facts=facts_columns(routing),
        profiles=profiles_of(routing),
        origins=origins_of(runs),
        costs=cost_columns(runs, names),
        plots=[_plots(table, key) for key in COSTS],
        runs=[Provenance.of(run) for run in runs],
        notes=explained_marks(mark for line in table.lines for mark in line.score.marks),
    )


def prices(table: CommandTable) -> list[str]:
    """For each method: the tokens that it reads, relative to the base model, and what was tuned to a bound."""
    found = []
    for method in dict.fromkeys(run.method for run in table.runs):
        lines = [line for line in table.shown if line.score.method == method and line.score.other == BASE]
        times = [f"{each:.3g}" for each in sorted(filter(None, map(table.times_base, lines)))]
        bounds = [run.tuning.get("at_bound", []) for run in table.runs if run.method == method]
        parts = []
        if times and times != ["1"] * len(times):
            parts.append(
                f"reads {' to '.join(dict.fromkeys((times[0], times[-1])))} times the tokens of the base model"
            )
        if named := list(dict.fromkeys(name.replace("_", " ") for one in bounds for name in one)):
            parts.append(f"has a tuned {' and '.join(named)} at the bound of its search")
        found += [f"{method} {' and '.join(parts)}."] * bool(parts)
    return found


def metrics_of(runs: Sequence[RunResult], names: Sequence[str]) -> list[Column]:
    """All metrics of each run's tasks and groups; empty if each has its headline alone, which the scores show."""
    found = [
        (name, task, key, value, error if isinstance(error, int | float) else None)
        for run, name in zip(runs, names, strict=True)
        for task in dict.fromkeys([*run.requested, *run.groups, *run.tasks])
        for key, value in run.scores(task).items()
        if isinstance(value, int | float) and "," in key and "_stderr," not in key
        for error in [run.scores(task).get(key.replace(",", "_stderr,", 1))]
    ]
    if len(found) == len({place[:2] for place in found}):
        return []
    run, task, metric, values, errors = zip(*found, strict=True)
    return [
        texts("run", run),
        texts("task", task),
        texts("metric", metric),
        numbers("value", values, number),
        numbers("standard error", errors, number),
    ]


def cost_columns(runs: Sequence[RunResult], names: Sequence[str]) -> list[Column]:
    """The cost of each run; its number is the label of its points in the plots."""

    def column(heading: str, key: str, text: Callable[[Any], str]) -> Column:
        return numbers(heading, [run.cost.get(key) for run in runs], text)

    return [
        numbers("no.", list(range(1, len(runs) + 1)), count),
        texts("run", names),
        numbers("routing samples", [run.method_config.get("n") for run in runs], count),
        column("seconds", "wall_seconds", lambda value: f"{value:.1f}"),
        column("seconds of loading", "load_seconds", lambda value: f"{value:.1f}"),
        column("tokens in", "tokens_in", count),
        column("tokens out", "tokens_out", count),
        column("tokens/s", "tokens_per_second", count),
        column("peak memory, GiB", "peak_memory_bytes", lambda value: f"{value / 2**30:.2f}"),
        column("near ties", "near_ties", count),
        texts("device", [run.cost.get("device") or "" for run in runs]),
    ]


def facts_columns(routing: Sequence[RunRouting]) -> list[Column]:
    """What the methods of several runs report, a row per run."""
    named = dict.fromkeys(name for one in routing for name in one.facts)
    shown = [one for one in routing if one.facts]
    return [
        texts("run", [one.label for one in shown]),
        *(
            numbers(name.replace("_", " "), [one.facts.get(name) for one in shown], partial(fact, name=name))
            for name in named
        ),
    ]


def _title(runs: Sequence[RunResult]) -> str:
    """The methods and tasks of the runs. The base model is named only if nothing else ran."""
    methods = list(dict.fromkeys(run.method for run in runs))
    tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))
    shown = ", ".join(tasks) if len(tasks) <= 4 else f"{len(tasks)} tasks"
    return f"{', '.join([name for name in methods if name != 'base'] or methods)} on {shown}"


def _plots(table: CommandTable, key: str) -> list[dict[str, Any]]:
    """Each score of a task against a cost, if two runs or more have both. Points have the numbers of their runs."""
    places = {run.run_id: str(place) for place, run in enumerate(table.runs, start=1)}
    single = [line for line in table.lines if line.score.run_id in places and line.score.other == BASE]
    plots, (axis, unit) = [], COSTS[key]
    for task, metric in dict.fromkeys((line.score.task, line.score.metric) for line in single):
        points = [
            {
                "label": places[score.run_id],
                "cost": cost / unit,
                "score": score.value,
                "interval": score.interval or (score.value, score.value),
            }
            for line in single
            for score, cost in [(line.score, line.cost(key))]
            if (score.task, score.metric) == (task, metric)
            if score.value is not None and cost is not None
        ]
        if len(points) > 1:
            plots.append(plot(f"{task}: {metric} against {axis}", axis, metric, points))
    return plots
