"""The cells of an experiment: composed, prepared, and placed in its table."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from moe_lab.config.compose import Cell, compose_cell
from moe_lab.config.hydra_errors import REQUEST_ERRORS, explain
from moe_lab.config.overrides import LAUNCHER
from moe_lab.config.schema import Config
from moe_lab.config.validators import did_you_mean
from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.methods import TEXT_KEYS, config_class, methods_with
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import MEASURE, SETTINGS, Experiment, find_experiments
from moe_lab.reports.papers.expert_scores import EXPERT
from moe_lab.reports.papers.files import typed_settings
from moe_lab.reports.papers.training_scores import NO_TASK, TRAINING
from moe_lab.runs.attempts import Failure
from moe_lab.runs.config import to_config
from moe_lab.runs.jobs import PROFILE, Job, by_model, job_after, job_of
from moe_lab.runs.run import Outcome
from moe_lab.runs.summaries import summary
from moe_lab.runs.tuning.prepare import prepare_study
from moe_lab.runs.tuning.study import Study

# The cells of an experiment, composed with the user's overrides and checked

OURS = ("experiment", "scale", "mode")


@dataclass(frozen=True)
class Composed:
    """An experiment at one scale: the configurations of its cells and of its scale's study."""

    experiment: Experiment
    cells: list[tuple[Cell, Config]]
    study: Config | None


@dataclass
class PreparedCell:
    """A checked cell of an experiment: its job, or the error that prevents it."""

    cell: Cell
    config: Config
    job: Job | None
    error: BaseException | None = None


def compose_experiments(config: Config, base: Cell) -> list[Composed]:
    """The experiments in `config.experiment`, every cell composed with the user's overrides last.

    `method.<key>=` applies to cells whose method has that key. Raises ConfigError for a key that no cell has, and for
    other overrides that a cell does not accept.
    """
    assert config.experiment is not None
    experiments = find_experiments(config.experiment, list(map(Path, base.config_dirs)))
    pairs = [(each, each.scale(config.scale)) for each in experiments]
    if base.method_keys:
        methods = [_method(each, cell, base) for each, scale in pairs for cell in scale.overrides()]
        known = dict.fromkeys(key for method in methods for key in method)
        for key in map(_method_key, base.method_keys):
            if key not in known:
                raise ConfigError(
                    f"Unknown key 'method.{key}': no cell of experiment={config.experiment} has it."
                    f"{did_you_mean(key, known)}"
                )
    typed = typed_settings([*_typed(base), *base.method_keys])
    return [
        Composed(
            replace(
                experiment, typed=typed if scale.overrides() else [], config_dirs=base.config_dirs
            ),
            [_compose(experiment, overrides, base) for overrides in scale.overrides()],
            _compose(experiment, scale.profile, base)[1] if scale.profile else None,
        )
        for experiment, scale in pairs
    ]


def _compose(experiment: Experiment, overrides: list[str], base: Cell) -> tuple[Cell, Config]:
    method = _method(experiment, overrides, base) if base.method_keys else {}
    taken = [override for override in base.method_keys if _method_key(override) in method]
    with _naming(experiment, overrides):
        cell = compose_cell([*overrides, *_typed(base), *taken], base.config_dirs, TEXT_KEYS)
    return cell, to_config(cell)


def _method(experiment: Experiment, overrides: list[str], base: Cell) -> dict[str, Any]:
    """The keys of a cell's method; its name is a value."""
    given = [*overrides, *_typed(base), *base.method_keys]
    chosen = ("method", "method.policy") if "method=policy" in given else ("method",)
    choices = [override for override in given if _key(override) in chosen]
    with _naming(experiment, overrides):
        method: dict[str, Any] = compose_cell(choices, base.config_dirs, TEXT_KEYS).values["method"]
    return {key.name: None for key in fields(config_class(method["name"], method))} | method


@contextmanager
def _naming(experiment: Experiment, overrides: list[str]) -> Iterator[None]:
    """Turn Hydra's errors into a ConfigError that names the cell."""
    try:
        yield
    except REQUEST_ERRORS as error:
        raise ConfigError(
            f"experiment={experiment.name}, cell {' '.join(overrides)}: {explain(error, methods_with)}\n"
            "What is typed with experiment= applies to every cell of its table, method.<key>= to those that have it."
        ) from error


def _typed(base: Cell) -> list[str]:
    return [one for one in base.overrides if _key(one) not in OURS and not one.startswith(LAUNCHER)]


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _method_key(override: str) -> str:
    """`phases` of `method.phases`, `+method.phases.0.lr` and so on."""
    return _key(override).split(".")[1]


def prepare_cells(
    composed: Composed, known: dict[str, Job], *, compute: bool = True
) -> list[PreparedCell]:
    """The cells of an experiment with their jobs. Cells that the user's overrides make equal become one.

    A cell without data or model is kept with its error.

    Args:
        known: the jobs of earlier experiments by configuration. Equal cells share a job.
        compute: whether missing results will be computed. If so, the judges are checked.
    """
    study = cache(lambda: _study(composed.study))
    cells: list[PreparedCell] = []
    seen: set[str] = set()
    for cell, config in composed.cells:
        with_profile = cell.values["method"].get("temperature") == PROFILE
        name = repr((replace(config, overrides=[]), composed.study if with_profile else None))
        if name in seen:
            continue
        seen.add(name)
        try:
            if name not in known:
                job = job_after(study(), config) if with_profile else job_of(config)
                if compute:
                    job.check_judges()
                known[name] = job
                known[name].timed |= composed.experiment.figure == "overhead"  # of time and power
            cells.append(PreparedCell(cell, config, known[name]))
        except MoeLabError as error:
            cells.append(PreparedCell(cell, config, None, error))
    return cells


def _study(config: Config | None) -> Study:
    if config is None:
        raise ConfigError(
            f"method.temperature={PROFILE} needs `profile` at this scale: a study's overrides."
        )
    if config.num_studies > 1:
        raise ConfigError(f"method.temperature={PROFILE} takes one study: leave tuning.seeds out.")
    return prepare_study(config)


Experiments = list[tuple[Experiment, list[PreparedCell]]]
"""Experiments with their checked cells. A cell has a job, or the error that prevents it."""
NOTHING_STORED = "Nothing of this is stored yet. The same command with mode=run computes it."


def prepare_experiments(config: Config, cell: Cell, *, compute: bool = True) -> Experiments:
    """The experiments in `config.experiment`. Their cells share jobs. `compute` as in `prepare_cells`."""
    composed = compose_experiments(config, cell)
    known: dict[str, Job] = {}
    experiments = [
        (each.experiment, prepare_cells(each, known, compute=compute)) for each in composed
    ]
    for job in known.values():
        job.group = config.experiment
    return experiments


def jobs_of_cells(experiments: Experiments) -> list[Job]:
    """The jobs of all cells, each once and ordered by model."""
    jobs = [cell.job for _, cells in experiments for cell in cells if cell.job is not None]
    return by_model(list({id(job): job for job in jobs}.values()))


def refused_of(experiments: Experiments) -> dict[str, list[Config]]:
    """The configurations that cannot run, by reason."""
    refused: dict[str, list[Config]] = {}
    for cell in (cell for _, cells in experiments for cell in cells if cell.error is not None):
        refused.setdefault(str(cell.error), []).append(cell.config)
    return refused


def experiment_configs(config: Config, base: Cell) -> list[Config]:
    """The configurations of all cells and studies of the experiments in `config.experiment`."""
    composed = compose_experiments(config, base)
    studies = [each.study for each in composed if each.study is not None]
    return [*(typed for each in composed for _, typed in each.cells), *studies]


# The coordinates of an experiment's cells in its table, and the results of each


def filled(
    experiment: Experiment,
    scale: str,
    cells: Sequence[PreparedCell],
    outcomes: Mapping[str, Outcome],
    failures: Sequence[Failure],
) -> tuple[Experiment, list[TableCell]]:
    """An experiment with the cells of its table, one for each cell and metric. Expert metrics need metrics=expert.

    Typed overrides may give several cells the same coordinates. Then one more axis, SETTINGS, has their own overrides.
    A number of a training is one cell: runs on several tasks evaluate the same trained model.
    """
    axes = [key for key in experiment.keys if key != MEASURE]
    places = [{key: coordinate(one, key) for key in axes} for one in cells]
    if any(places.count(place) > 1 for place in places):
        groups = [
            [one for one, own in zip(cells, places, strict=True) if own == place]
            for place in places
        ]
        for one, place, group in zip(cells, places, groups, strict=True):
            common = set.intersection(*(set(each.cell.overrides) for each in group))
            # the last override of a key applies
            last = {text.partition("=")[0]: text for text in one.cell.overrides}
            place[SETTINGS] = " ".join(text for text in last.values() if text not in common) or "-"
        experiment = replace(experiment, rows=[*experiment.rows, SETTINGS])
    kept: dict[Any, TableCell] = {}
    for one, place in zip(cells, places, strict=True):
        whole = _whole_cell(one, place, outcomes, failures)
        for name, metric in experiment.metrics(scale).items():
            if metric.startswith(EXPERT) and one.config.metrics != "expert":
                continue
            more = {MEASURE: name} if MEASURE in experiment.keys else {}
            if experiment.average and metric.startswith(TRAINING):
                more |= {experiment.average: NO_TASK}
            cell = replace(whole, metric=metric, coordinates=place | more)
            key = tuple(cell.coordinates.items()) if cell.of_training else len(kept)
            if key not in kept or len(cell.results) > len(kept[key].results):
                kept[key] = cell
    return experiment, list(kept.values())


def _whole_cell(
    one: PreparedCell,
    place: dict[str, str],
    outcomes: Mapping[str, Outcome],
    failures: Sequence[Failure],
) -> TableCell:
    """The cell with all its results, or with the reason why there are none."""
    ids = [run.run_id for run in one.job.runs] if one.job is not None else []
    studies = [study.folder for study in one.job.studies] if one.job is not None else []
    own = None if one.job is None else one.job.name
    failed = (f.error for f in failures if (f.name == own if f.run_id is None else f.run_id in ids))
    error = one.error or next(failed, None)
    done = [outcomes[run_id] for run_id in ids if run_id in outcomes]
    return TableCell(
        coordinates=place,
        run_id=ids[0] if ids else None,
        results=[outcome.results for outcome in done],
        expert=[outcome.run.stored_metrics() for outcome in done],
        summary=summary(done) if len(done) > 1 else None,
        studies=[folder for folder in studies if (folder / "best.yaml").exists()],
        problem=None if error is None else " ".join(str(error).split()),
        config=one.config,
    )


def coordinate(prepared: PreparedCell, key: str) -> str:
    """The coordinate of a cell on one axis: an option's name, a dotted key's value, or a property of the method.

    A dash means a missing value, or a value without effect.
    """
    if key == "model":
        return prepared.config.model.name
    if key == "method" and getattr(prepared.config.method, "temperature", None) == 0:
        # it differs from the base model by rounding only
        return f"{prepared.cell.choices[key]}, temperature 0"
    if key in prepared.cell.choices:
        return prepared.cell.choices[key]
    group, _, name = key.partition(".")
    method = prepared.config.method
    if group == "method" and name in method.unread:
        return "-"
    value: Any = prepared.cell.values
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None  # a model without a recipe
    if group == "method" and name not in prepared.cell.values["method"]:
        value = getattr(method, name, None)
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)
