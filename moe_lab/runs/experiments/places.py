"""The coordinates of an experiment's cells in its table, and the results of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moe_lab.methods import get_method
from moe_lab.metrics.stored_metrics import stored_metrics
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.experiment import MEASURE, SETTINGS, Experiment
from moe_lab.reports.papers.expert_scores import EXPERT
from moe_lab.reports.papers.training_scores import NO_TASK, TRAINING
from moe_lab.runs.attempts import Failure
from moe_lab.runs.experiments.cells import PreparedCell
from moe_lab.runs.summaries import summary

if TYPE_CHECKING:
    from moe_lab.runs.run import Outcome

Place = dict[str, str]

NULL = "temperature 0"
"""Mark of a method without noise, which differs from the untouched model by rounding only."""


def placed(experiment: Experiment, cells: Sequence[PreparedCell]) -> tuple[Experiment, list[Place]]:
    """The coordinates of every cell on the axes of the experiment.

    Cells that typed overrides put in one place are distinguished by one more axis, SETTINGS: their own overrides.
    """
    axes = [key for key in experiment.keys if key != MEASURE]
    places = [{key: coordinate(one, key) for key in axes} for one in cells]
    shared = [[one for one, other in zip(cells, places, strict=True) if other == place] for place in places]
    if all(len(group) == 1 for group in shared):
        return experiment, places
    settings = [_own_settings(one, group) for one, group in zip(cells, shared, strict=True)]
    extended = [place | {SETTINGS: own} for place, own in zip(places, settings, strict=True)]
    return replace(experiment, rows=[*experiment.rows, SETTINGS]), extended


def _own_settings(one: PreparedCell, group: Sequence[PreparedCell]) -> str:
    """The overrides of a cell that are not common to its group; a dash for none."""
    common = set.intersection(*(set(each.cell.overrides) for each in group))
    last = {text.partition("=")[0]: text for text in one.cell.overrides}  # the last override of a key applies
    return " ".join(text for text in last.values() if text not in common) or "-"


def coordinate(prepared: PreparedCell, key: str) -> str:
    """The coordinate of a cell on one axis: an option's name, a dotted key's value, or a property of the method.

    A dash stands for a missing value, and for one without effect.
    """
    if key == "model":
        return prepared.config.model.name
    if key == "method" and getattr(prepared.config.method, "temperature", None) == 0:
        return f"{prepared.cell.choices[key]}, {NULL}"
    if key in prepared.cell.choices:
        return prepared.cell.choices[key]
    group, _, name = key.partition(".")
    method = prepared.config.method
    if group == "method" and name in get_method(method.name).unread(method):
        return "-"
    value: Any = prepared.cell.values
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None  # a model without a recipe
    if group == "method" and name not in prepared.cell.values["method"]:
        value = getattr(method, name, None)
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)


def table_cells(
    experiment: Experiment,
    scale: str,
    one: PreparedCell,
    place: Place,
    outcomes: Mapping[str, Outcome],
    failures: Sequence[Failure],
) -> list[TableCell]:
    """A cell for each of the experiment's metrics, without expert metrics that the configuration does not measure."""
    runs = one.job.runs if one.job is not None else []
    ids = [run.run_id for run in runs]
    studies = [study.folder for study in one.job.studies] if one.job is not None else []
    names = [one.job.name] if one.job is not None and not runs else []
    failed = (f.error for f in failures if f.run_id in ids or (f.run_id is None and f.name in names))
    error = one.error or next(failed, None)
    done = [outcomes[run_id] for run_id in ids if run_id in outcomes]
    whole = TableCell(
        coordinates=place,
        run_id=ids[0] if ids else None,
        results=[outcome.results for outcome in done],
        expert=[_expert_metrics(outcome) for outcome in done],
        summary=summary(done) if len(done) > 1 else None,
        studies=[folder for folder in studies if (folder / "best.yaml").exists()],
        problem=None if error is None else " ".join(str(error).split()),
        config=one.config,
        folder=runs[0].folder if runs else None,
    )
    several = MEASURE in experiment.keys
    return [
        replace(
            whole,
            metric=metric,
            coordinates=place
            | ({MEASURE: name} if several else {})
            | ({experiment.average: NO_TASK} if experiment.average and metric.startswith(TRAINING) else {}),
        )
        for name, metric in experiment.metrics(scale).items()
        if one.config.metrics == "expert" or not metric.startswith(EXPERT)
    ]


def each_training_once(cells: Sequence[TableCell]) -> list[TableCell]:
    """The cells, without those that repeat what a training measured: runs on several tasks evaluate one model."""
    found: dict[Any, TableCell] = {}
    for number, cell in enumerate(cells):
        key = tuple(cell.coordinates.items()) if cell.of_training else number
        if key not in found or len(cell.results) > len(found[key].results):
            found[key] = cell
    return list(found.values())


def _expert_metrics(outcome: Outcome) -> dict[str, Any] | None:
    run = outcome.run
    return (
        stored_metrics(run.folder, run.run_id, run.facts.commit) if run.config.metrics == "expert" else None
    )
