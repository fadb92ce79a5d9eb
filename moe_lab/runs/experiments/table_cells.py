"""The cells of an experiment's table: their coordinates and stored results."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import MEASURE, SETTINGS, Experiment
from moe_lab.reports.papers.metric_names import EXPERT
from moe_lab.reports.papers.training_scores import NO_TASK, TRAINING
from moe_lab.runs.attempts import Failure
from moe_lab.runs.experiments.cells import PreparedCell
from moe_lab.runs.jobs import Job
from moe_lab.runs.run import Outcome
from moe_lab.runs.summaries import summary


class FilledExperiment(NamedTuple):
    """An experiment with the cells of its table."""

    experiment: Experiment
    cells: list[TableCell]

    @property
    def is_measured(self) -> bool:
        """Whether it has something to show: any stored result or study, or no cells at all."""
        if not self.cells:
            return True
        return any(cell.results or cell.studies for cell in self.cells)


def filled(
    experiment: Experiment,
    scale: str,
    cells: Sequence[PreparedCell],
    outcomes: Mapping[str, Outcome],
    failures: Sequence[Failure],
) -> FilledExperiment:
    """An experiment with one table cell for each cell and metric.

    Expert metrics need metrics=expert.

    Typed overrides may give several cells the same coordinates. Then one more axis, SETTINGS, has
    their own overrides. A number of a training is one cell: runs on several tasks evaluate the same
    trained model.

    Args:
        outcomes: the results by run id.
    """
    axes = [key for key in experiment.keys if key != MEASURE]
    places = []
    for cell in cells:
        places.append({key: coordinate(cell, key) for key in axes})
    if any(places.count(place) > 1 for place in places):
        for place, settings in zip(places, _own_overrides(cells, places), strict=True):
            place[SETTINGS] = settings
        experiment = replace(experiment, rows=[*experiment.rows, SETTINGS])
    table_cells: list[TableCell] = []
    for cell, place in zip(cells, places, strict=True):
        whole_cell = _whole_cell(cell, place, outcomes, failures)
        for name, metric in experiment.metrics(scale).items():
            if metric.startswith(EXPERT) and cell.config.metrics != "expert":
                continue
            coordinates = dict(place)
            if MEASURE in experiment.keys:
                coordinates[MEASURE] = name
            if experiment.average and metric.startswith(TRAINING):
                coordinates[experiment.average] = NO_TASK
            table_cells.append(replace(whole_cell, metric=metric, coordinates=coordinates))
    return FilledExperiment(experiment, _each_training_once(table_cells))


def _each_training_once(cells: Sequence[TableCell]) -> list[TableCell]:
    """The cells, of which each number of a training is there once.

    Of several with equal coordinates the one with the most results is kept, in the place of the
    first.
    """
    distinct: list[TableCell] = []
    index_of_training: dict[Hashable, int] = {}
    for cell in cells:
        if not cell.of_training:
            distinct.append(cell)
            continue
        coordinates = tuple(cell.coordinates.items())
        index = index_of_training.get(coordinates)
        if index is None:
            index_of_training[coordinates] = len(distinct)
            distinct.append(cell)
        elif len(cell.results) > len(distinct[index].results):
            distinct[index] = cell
    return distinct


def _own_overrides(
    cells: Sequence[PreparedCell], coordinates: Sequence[Mapping[str, str]]
) -> list[str]:
    """What distinguishes each cell from the cells with the same coordinates.

    These are the overrides that not all of them have, as one text, or a dash if there are none. The
    overrides `seed=1 limit=4` and `limit=4` at the same coordinates give "seed=1" and "-".
    """
    overrides_of_cells = [prepared.cell.overrides for prepared in cells]
    common_at: dict[Hashable, set[str]] = {}
    for overrides, coordinate_by_axis in zip(overrides_of_cells, coordinates, strict=True):
        common = common_at.setdefault(frozenset(coordinate_by_axis.items()), set(overrides))
        common.intersection_update(overrides)

    own_overrides = []
    for overrides, coordinate_by_axis in zip(overrides_of_cells, coordinates, strict=True):
        common = common_at[frozenset(coordinate_by_axis.items())]
        # the last override of a key applies
        applied = {override.partition("=")[0]: override for override in overrides}
        distinct = [override for override in applied.values() if override not in common]
        own_overrides.append(" ".join(distinct) or "-")
    return own_overrides


def _whole_cell(
    prepared: PreparedCell,
    coordinates: dict[str, str],
    outcomes: Mapping[str, Outcome],
    failures: Sequence[Failure],
) -> TableCell:
    """The cell with all its results, or with the reason why there are none."""
    run_ids: list[str] = []
    studies = []
    error = prepared.error
    if prepared.job is not None:
        run_ids = [run.run_id for run in prepared.job.runs]
        for study in prepared.job.studies:
            if (study.folder / "best.yaml").exists():
                studies.append(study.folder)
        error = error or _failure_of(prepared.job, run_ids, failures)
    done = [outcomes[run_id] for run_id in run_ids if run_id in outcomes]
    return TableCell(
        coordinates=coordinates,
        run_id=run_ids[0] if run_ids else None,
        results=[outcome.results for outcome in done],
        expert=[outcome.run.stored_metrics() for outcome in done],
        summary=summary(done) if len(done) > 1 else None,
        studies=studies,
        problem=None if error is None else " ".join(str(error).split()),
        config=prepared.config,
    )


def _failure_of(
    job: Job, run_ids: Sequence[str], failures: Sequence[Failure]
) -> BaseException | None:
    """The first error of the job's trainings, studies and runs; None without one."""
    for failure in failures:
        is_of_job = failure.run_id in run_ids
        if failure.run_id is None:
            is_of_job = failure.name == job.name
        if is_of_job:
            return failure.error
    return None


def coordinate(prepared: PreparedCell, key: str) -> str:
    """The coordinate of a cell on one axis.

    It is an option's name, the value of a dotted key, or a property of the method. A dash means a
    missing value, or a value without effect.
    """
    method = prepared.config.method
    choices = prepared.cell.choices
    if key == "model":
        return prepared.config.model.name
    if key == "method" and getattr(method, "temperature", None) == 0:
        # it differs from the base model by rounding only
        return f"{choices[key]}, temperature 0"
    if key in choices:
        return choices[key]
    group, _, name = key.partition(".")
    if group == "method" and name in method.unread:
        return "-"
    if group == "method" and name not in prepared.cell.values["method"]:
        value = getattr(method, name, None)
    else:
        value = _value_of(prepared.cell.values, key)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _value_of(values: Any, key: str) -> Any:
    """The value of a dotted key; None where a part of it is missing."""
    for part in key.split("."):
        if not isinstance(values, dict):  # a model without a recipe
            return None
        values = values.get(part)
    return values
