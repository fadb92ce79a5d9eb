"""An experiment: a YAML file in a folder `experiments/`.

It names a paper's table, its cells and the paper's numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, product
from pathlib import Path
from typing import Any

import yaml

from moe_lab.config.catalog import experiment_files, resource_folder
from moe_lab.config.schema import Config
from moe_lab.config.validators import build, did_you_mean, one_of
from moe_lab.errors import ConfigError, reading
from moe_lab.reports.papers.figure_kinds import FIGURES, TABLES
from moe_lab.reports.papers.metric_names import EXPERT, HEADLINE
from moe_lab.reports.papers.published import Published, read_published

MEASURE = "measure"
"""The axis of an experiment with several metrics."""
SETTINGS = "settings"
"""The axis that distinguishes cells whose coordinates became equal by typed overrides."""
MEASURES_EXPERTS = "metrics=expert"
"""The override of a cell whose expert metrics are measured."""
AVERAGE = "average"
"""The coordinate of an average on the axis that it averages over."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The cells of a scale, as overrides of the ordinary command."""

    grid: dict[str, list[Any]] | list[dict[str, list[Any]]] = field(default_factory=list)
    """Options by key, one grid or several. An option may be a list: its name, then overrides that
    go with it."""
    cells: list[list[str]] = field(default_factory=list)
    set: list[str] = field(default_factory=list)
    profile: list[str] = field(default_factory=list)
    """Overrides of a study. In this scale's cells `method.temperature=profile` stands for its
    profile."""
    metric: str | dict[str, str] | None = None
    """Replaces the experiment's `metric` at this scale, for example where other judges are used."""

    def overrides(self) -> list[list[str]]:
        """One list of overrides per cell: the grids' combinations, then the single cells."""
        cells = []
        grids = [self.grid] if isinstance(self.grid, dict) else self.grid
        for grid in grids:
            cells += _combinations(grid)
        cells += self.cells
        return [[*cell, *self.set] for cell in cells]


def _combinations(grid: dict[str, list[Any]]) -> list[list[str]]:
    """The overrides of each combination of a grid's options."""
    axes = []
    for key, options in grid.items():
        axis = []
        for option in options:
            name, *more_overrides = option if isinstance(option, list) else [option]
            axis.append([f"{key}={name}", *more_overrides])
        axes.append(axis)
    return [list(chain.from_iterable(combination)) for combination in product(*axes)]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table: its rows and columns, its cells at each scale, and the paper's numbers."""

    name: str
    title: str
    source: str
    rows: list[str]
    columns: list[str]
    metric: str | dict[str, str]
    """`headline`, an lm-eval `metric,filter`, an expert metric (`expert.load_balance`) or a number
    of a training (`training.validation_loss`); several by their names on the axis MEASURE."""
    scales: dict[str, Scale]
    paper: list[Published]
    figure: str | None = None
    """A kind of FIGURES or TABLES."""
    average: str | None = None
    """The axis to average over. If it is not a row or column, only the average is shown."""
    chance: dict[str, float] = field(default_factory=dict)
    """The accuracy of random answers, by task."""
    typed: list[str] = field(default_factory=list)
    """Overrides typed with `experiment=` that change the table."""
    config_dirs: list[str] = field(default_factory=list)
    """The folders of `--config-dir`."""

    def __post_init__(self) -> None:
        one_of("figure", self.figure, sorted([*FIGURES, *TABLES]))
        self._check_metrics()
        self._check_published()

    def _check_published(self) -> None:
        """Raise ConfigError for a published value that is no number."""
        if self.figure == "recipe":  # settings, of which some are texts
            return
        for i, published in enumerate(self.paper):
            if isinstance(published.value, str):
                raise ConfigError(f"paper[{i}].value={published.value}: expected a number.")

    def _check_metrics(self) -> None:
        """Raise ConfigError for several metrics without the axis MEASURE, for that axis without
        several metrics, and for a metric that no cell can have."""
        metrics = [self.metric]
        for scale in self.scales.values():
            if scale.metric is not None:
                metrics.append(scale.metric)

        has_axis = MEASURE in self.keys
        if any(isinstance(metric, dict) != has_axis for metric in metrics):
            raise ConfigError("metric: {<name>: <metric>} goes with measure in rows or columns.")
        for name in self.scales:
            for metric in self.metrics(name).values():
                _check_metric(metric)
            self._check_expert_metrics(name)

    def _check_expert_metrics(self, scale: str) -> None:
        """Raise ConfigError for a scale that shows expert metrics and measures none."""
        cells = self.scale(scale).overrides()
        if not cells or any(MEASURES_EXPERTS in overrides for overrides in cells):
            return
        for metric in self.metrics(scale).values():
            if metric.startswith(EXPERT):
                raise ConfigError(
                    f"metric={metric}: no cell of scales.{scale} has {MEASURES_EXPERTS}.\n"
                    f"Add it: set: [{MEASURES_EXPERTS}]."
                )

    def metrics(self, scale: str) -> dict[str, str]:
        """The metrics of a scale's cells by their names on the axis MEASURE.

        A single metric has its own name: {"acc,none": "acc,none"}.
        """
        metric = self.scale(scale).metric or self.metric
        if isinstance(metric, dict):
            return metric
        return {metric: metric}

    @property
    def keys(self) -> list[str]:
        """All axes of its cells."""
        keys = [*self.rows, *self.columns]
        if self.average:
            keys.append(self.average)
        return list(dict.fromkeys(keys))

    def scale(self, name: str) -> Scale:
        """The cells of one scale. Raises ConfigError naming those that the experiment has."""
        if name not in self.scales:
            raise ConfigError(
                f"experiment={self.name} lacks scale={name}. It has: {', '.join(self.scales)}."
            )
        return self.scales[name]


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML has it. It reads the files of all experiments in 0.1 s, the other one in
0.5 s."""
OWN = "own"
"""The folder of this project's own studies."""


def find_experiments(names: str, config_dirs: Sequence[Path] = ()) -> list[Experiment]:
    """The experiments of `experiment=<name>,...|all`, each once.

    They are the package's and those in `experiments/` of the folders of `--config-dir`. Raises
    ConfigError for an unknown or ambiguous name and for a malformed file.

    Args:
        names: names of files, separated by commas, with the folder if needed: `figure3` or
            `roe/figure3`. "all" means all but this project's own studies in `experiments/own/`.
    """
    files = experiment_files(config_dirs)
    if names == "all":
        own_studies = resource_folder("experiments") / OWN
        chosen = [name for name, file in files.items() if file.parent != own_studies]
    else:
        chosen = [_full_name(name.strip(), list(files)) for name in names.split(",")]
    return [load_experiment(name, files[name]) for name in dict.fromkeys(chosen)]


def load_experiment(name: str, file: Path) -> Experiment:
    """The experiment in a file. Raises ConfigError for a malformed file or an unknown key."""
    with reading(file):
        values = yaml.load(file.read_text(encoding="utf-8"), Loader=LOADER)
        scales = {}
        for scale_name, scale in values.get("scales", {}).items():
            scales[scale_name] = build(Scale, scale, f"scales.{scale_name}.")
        paper = read_published(values.get("paper") or [], file)
        keys = {"metric": HEADLINE, **values, "name": name, "scales": scales, "paper": paper}
        experiment = build(Experiment, keys, "")
        _check_axes(experiment)
        return experiment


def _check_metric(metric: str) -> None:
    """Raise ConfigError for the name of no metric.

    Names with a comma are lm-eval's (`acc,none`). Which of them a task has is known after it is
    loaded.
    """
    if "," in metric or metric == HEADLINE:
        return
    # they need numpy, which the help of other tables does without
    from moe_lab.reports.papers.expert_scores import expert_metric_names
    from moe_lab.reports.papers.training_scores import METRICS

    names = [HEADLINE, *expert_metric_names(), *METRICS]
    if metric not in names:
        raise ConfigError(
            f"metric={metric} is unknown.{did_you_mean(metric, names)}\n"
            f"Choices: lm-eval's with their filter (acc,none), {', '.join(names)}."
        )


def _check_axes(experiment: Experiment) -> None:
    """Raise ConfigError for an axis whose first part is no group and no key of a command."""
    first_parts = [setting.name for setting in fields(Config)] + [MEASURE]
    for axis in experiment.keys:
        if axis.partition(".")[0] not in first_parts:
            raise ConfigError(
                f"rows, columns or average: no cell has {axis!r}.{did_you_mean(axis, first_parts)}"
            )


def _full_name(name: str, names: list[str]) -> str:
    """The name of an experiment with its folder.

    Raises ConfigError for an unknown or ambiguous name.
    """
    if name in names:
        return name
    matches = [full_name for full_name in names if name == full_name.rpartition("/")[2]]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"experiment={name} is ambiguous. Choose one of: {', '.join(matches)}.")
    similar = names
    if "/" not in name:
        similar = [full_name.rpartition("/")[2] for full_name in names]
    raise ConfigError(
        f"Unknown experiment {name!r}.{did_you_mean(name, similar)} Choices: {', '.join(names)}, "
        "all, and those in <folder>/experiments with --config-dir <folder>."
    )
