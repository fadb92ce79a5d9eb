"""The page of a grid, in `outputs/pages/`: verdict, scores, the answers that changed, routing, cost, provenance."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moe_lab.metrics.registry import counted_metrics
from moe_lab.reports.csv_rows import csv_text
from moe_lab.reports.expert import expert_metrics_of, layer_rows
from moe_lab.reports.pages.answers import CHANGED, CHANGES, answer_data, examples_of
from moe_lab.reports.pages.page import latex_of_rows, number, pictures_in, text_uri, write_page
from moe_lab.reports.pages.plots import ForestPanel, Plot, Point, by_outcome, forest, plot, verdicts
from moe_lab.reports.papers.metrics import model_folder
from moe_lab.reports.provenance import Provenance
from moe_lab.reports.terminal.results import run_labels, seed_lines
from moe_lab.results.model import BASE, RunResult, compared_names
from moe_lab.results.score_table import Family, ScoreLine, SeedGroup, explained_marks, flat
from moe_lab.results.scores import Score, scores_of, shown_scores
from moe_lab.results.stored_files import damaged, read_csv, whole_mapping

# The routing of runs: temperatures, changed decisions, the load of experts

Facts = dict[str, str | int | float]
"""Numbers and words by key."""


def facts_of(content: Mapping[str, object], hidden: Sequence[str] = ()) -> Facts:
    """The values that are a single number or word, without the keys in `hidden`."""
    shown = {key: value for key, value in content.items() if key not in hidden}
    return {key: value for key, value in shown.items() if isinstance(value, str | int | float)}


@dataclass(frozen=True)
class Routing:
    """The routing of one run."""

    label: str
    facts: Facts
    """The single numbers and words of the method's report in results.json."""
    temperatures: tuple[float, ...]
    """One per MoE layer; empty for a method without."""
    layers: list[tuple[object, ...]]
    """The number of each MoE layer and its expert metrics (`metrics=expert`)."""
    pictures: list[tuple[str, str]]
    """Name and data URI of the figures in the run's folder."""


def routing_of(run: RunResult, label: str) -> Routing | None:
    """The routing of a run; None if nothing about it is stored."""
    report, measured = run.report, expert_metrics_of(run)
    facts = {} if "training" in report else facts_of(report)  # `origin_of` shows those of a training
    layers = [] if measured is None else layer_rows(measured)
    pictures = pictures_in(run.stored_in)
    temperatures = tuple(report.get("temperatures") or ())
    return Routing(label, facts, temperatures, layers, pictures) if facts or layers or pictures else None


def profiles_of(routing: Sequence[Routing]) -> dict[tuple[float, ...], list[str]]:
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
    trials: list[dict[str, str]]
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


def _trials(folder: Path) -> list[dict[str, str]]:
    from pandas import Timedelta

    path, trials = folder / "trials.csv", list[dict[str, str]]()
    try:
        for trial in read_csv(path) if path.is_file() else []:
            shown = {}
            for column, value in trial.items():
                name = column.removeprefix("params_").removeprefix("user_attrs_")
                if column.startswith(OPTUNAS_OWN):
                    continue
                if column == "duration":
                    name, value = "seconds", f"{Timedelta(value).total_seconds():.1f}" if value else ""
                shown[name] = f"{float(value):.6g}" if DECIMAL.fullmatch(value) else value
            trials.append(shown)
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(path, error) from error
    return trials


# The page of a grid, in `outputs/pages/`: verdict, scores, the answers that changed, routing, cost, provenance

COSTS = {"wall_seconds": ("seconds without loading", 1.0), "peak_memory_bytes": ("peak memory, GiB", 2.0**30)}
"""The costs that scores are drawn against: the key in `cost`, the label of the axis, and the divisor."""


def write_runs_page(
    runs: Sequence[RunResult], path: Path, family: Family, over_seeds: Sequence[SeedGroup] = ()
) -> Path:
    """Write the page of some runs and return its path. Raises ResultsError.

    The page shows a run's answers next to those of its baseline, if both sample logs are stored.

    Args:
        family: the family of the command's comparisons.
        over_seeds: groups of runs that differ in the seed alone.
    """
    labels = run_labels(runs)
    names = [
        f"{run.method} on {', '.join(run.requested)}" + (f" ({label})" if label else "")
        for run, label in zip(runs, labels, strict=True)
    ]
    lines = [
        ScoreLine(
            family.correct(score),
            label,
            compared={
                name: family.correct(each)
                for name in run.compared
                for each in scores_of(run, score.metric, name)
                if each.task == score.task
            },
        )
        for run, label in zip(runs, labels, strict=True)
        for score in shown_scores(run)
    ]
    means = [
        line for other in [BASE, *compared_names(runs)] for line in seed_lines(over_seeds, family, other)
    ]
    found = verdicts(replace(line, score=score) for line in [*lines, *means] for score in line.scores)
    table = [_row(line.score, line.label) for line in lines]
    examples = examples_of(runs, names)
    routing = [each for run, name in zip(runs, names, strict=True) if (each := routing_of(run, name))]
    return write_page(
        path,
        "runs.html.j2",
        title=_title(runs),
        models=list(dict.fromkeys(run.model for run in runs)),
        verdicts=by_outcome(found),
        only=found[0] if len(found) == 1 else None,
        count=len(found),
        forest=_forest([*lines, *means], several_models=len({run.model for run in runs}) > 1),
        lines=lines,
        compared=compared_names(runs),
        metrics=metrics_of(runs, names),
        seeds=[line for line in means if line.score.other == BASE],
        csv=text_uri(csv_text(table), "csv"),
        latex=text_uri(latex_of_rows(table, _title(runs)), "x-tex"),
        examples=examples,
        answer_data=answer_data(examples.answers),
        kinds=[
            kind for kind in CHANGES if kind != CHANGED and any(one.kind == kind for one in examples.answers)
        ],
        routing=routing,
        counted=counted_metrics().values(),
        profiles=profiles_of(routing),
        origins=origins_of(runs),
        costs=list(zip(runs, names, strict=True)),
        plots=_plots(lines, runs),
        runs=[Provenance.of(run) for run in runs],
        marks=explained_marks(mark for line in lines for mark in line.score.marks),
    )


def metrics_of(
    runs: Sequence[RunResult], names: Sequence[str]
) -> list[tuple[str, str, str, float, float | None]]:
    """Run, task, metric, value and standard error of all metrics of each run's tasks and groups.

    Empty if each has its headline alone, which the scores show.
    """
    found = [
        (name, task, key, float(value), error if isinstance(error, int | float) else None)
        for run, name in zip(runs, names, strict=True)
        for task in dict.fromkeys([*run.requested, *run.groups, *run.tasks])
        for key, value in run.scores(task).items()
        if isinstance(value, int | float) and "," in key and "_stderr," not in key
        for error in [run.scores(task).get(key.replace(",", "_stderr,", 1))]
    ]
    return found if len(found) > len({place[:2] for place in found}) else []


def _forest(lines: Sequence[ScoreLine], several_models: bool) -> list[ForestPanel]:
    """The differences to the base model and to the runs in `compared`."""
    rows = []
    for line in lines:
        parts = [line.score.model] * several_models + [line.score.method, line.label.replace("method.", "")]
        label = ", ".join(part for part in parts if part)
        for score in line.scores:
            to = "" if score.other == BASE else f", minus {score.other.replace('_', ' ')}"
            rows.append(ScoreLine(score, label + to))
    return forest(rows)


def _title(runs: Sequence[RunResult]) -> str:
    """The methods and tasks of the runs. The base model is named only if nothing else ran."""
    methods = list(dict.fromkeys(run.method for run in runs))
    tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))
    shown = ", ".join(tasks) if len(tasks) <= 4 else f"{len(tasks)} tasks"
    return f"{', '.join([name for name in methods if name != 'base'] or methods)} on {shown}"


def _row(score: Score, label: str) -> dict[str, object]:
    """A line of the downloads."""
    columns, signed = flat(score), ("difference", "difference_low", "difference_high")
    numbers = {
        name.replace("_", " "): number(value, name in signed).replace("\u2212", "-")
        for name in ("value", "low", "high", *signed)
        if not isinstance(value := columns[name], str)
    }
    names = {"model": score.model, "method": score.method, "task": score.task, "settings": label}
    p = "" if score.p is None else f"{score.p:.3g}"
    return {**names, "metric": score.metric, "n": score.n, **numbers, "p": p, "marks": columns["marks"]}


def _plots(lines: Sequence[ScoreLine], runs: Sequence[RunResult]) -> list[Plot]:
    """Each score of a task against each cost, if two runs or more have both. Points have the numbers of their runs."""
    numbered = {run.run_id: (str(place), run.cost) for place, run in enumerate(runs, start=1)}
    plots = []
    for task, metric in dict.fromkeys((line.score.task, line.score.metric) for line in lines):
        for key, (axis, unit) in COSTS.items():
            points = [
                Point(label, cost / unit, score.value, score.interval or (score.value, score.value))
                for score in (line.score for line in lines)
                for label, costs in [numbered[score.run_id]]
                if (score.task, score.metric) == (task, metric) and score.value is not None
                if (cost := costs.get(key)) is not None
            ]
            if len(points) > 1:
                plots.append(plot(f"{task}: {metric} against {axis}", axis, metric, points))
    return plots
