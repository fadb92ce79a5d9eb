"""An experiment: a YAML in a folder `experiments/` that names a paper's table, its cells and the paper's numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any

import yaml

from moe_lab.config.catalog import experiment_files, resource_folder
from moe_lab.config.validators import build, did_you_mean, one_of
from moe_lab.errors import ConfigError, reading

# The kinds of figures that an experiment's `figure:` names.
#
# A kind is a function `draw_<kind>(<data>)` in a module of `moe_lab/reports/figures/`, which returns a `Drawing`: its
# numbers, and how they are drawn. The name of its parameter says what its data are:

DATA = {
    "table": "cells",  # the experiment with its cells (`papers/cells.py: CellTable`)
    "studies": "studies",  # the studies that tuned the cells (`figures/studies.py: StoredStudy`)
    "runs": "traces",  # the traces of the cells' runs (`figures/traces.py: StoredTraces`)
    "measurements": "measurements",  # time and memory of a larger model (`runs/experiments/figure.py`)
}
KIND = re.compile(r"^def draw_(\w+)\(\s*(\w+):", re.MULTILINE)
FIGURES = {
    kind: (DATA[first], module.stem)
    for module in sorted((Path(__file__).parent.parent / "figures").glob("*.py"))
    for kind, first in KIND.findall(module.read_text(encoding="utf-8"))
    if first in DATA
}
"""The data and the module of each kind."""
TRACES = "traces.jsonl"
"""In the folder of a run with `method.trace=true`."""
TABLES = ("recipe", "references", "setup")
"""Kinds that replace the table of cells by a table of their own (`runs/experiments/figure.py`)."""


# The numbers that a paper published, read from the `paper` entries of an experiment's YAML


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number of the paper: its cell, unit and place, and a mark where it is doubtful."""

    cell: dict[str, str]
    value: float | str
    """A text for a setting that the paper gives in words (`figure: recipe`)."""
    unit: str = "fraction"
    place: str
    mark: str | None = None
    data: str | None = None
    """For a number in the text about a figure, what the rows of the figure's CSV have in its place: a query and an
    expression of pandas, as in `n == 64 => relative_watts - 1`. The first row counts."""

    @property
    def fraction(self) -> float:
        """The value as in results.json, where rates are fractions."""
        value = float(self.value)
        return value / 100 if self.unit == "percent" else value

    @property
    def where(self) -> str:
        """The number as the paper prints it, its place, and the mark."""
        printed = f"{self.value:g}%" if self.unit == "percent" else f"{self.value:g} {self.unit}"
        return " ".join(
            filter(None, [f"{printed.removesuffix(' fraction')}, {self.place}", self.mark])
        )


def read_published(entries: Sequence[dict[str, Any]], file: Path) -> list[Published]:
    """The numbers of the entries of a file. An entry may have a list of numbers for a list of names in its cell.

    Raises ConfigError for a malformed entry.
    """
    found = []
    for i, entry in enumerate(entries):
        cell, value = entry.get("cell") or {}, entry.get("value")
        values = value if isinstance(value, list) else [value]
        listed = {key: names for key, names in cell.items() if isinstance(names, list)}
        lengths = [len(names) for names in listed.values()]
        if lengths != [len(values)] * isinstance(value, list):
            key, names = next(iter(listed.items()), ("", []))
            raise ConfigError(
                f"{file}: paper[{i}]: cell.{key} lists {len(names)} names, value needs as many numbers."
            )
        for j, number in enumerate(values):
            own = {"cell": cell | {key: names[j] for key, names in listed.items()}, "value": number}
            found.append(build(Published, entry | own, f"paper[{i}]."))
    return found


# An experiment: a YAML in a folder `experiments/` that names a paper's table, its cells and the paper's numbers

MEASURE = "measure"
"""The axis of an experiment with several metrics."""
SETTINGS = "settings"
"""The axis that distinguishes cells whose coordinates became equal by typed overrides."""
AVERAGE = "average"
"""The coordinate of an average on the axis that it averages over."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The cells of a scale, as overrides of the ordinary command."""

    grid: dict[str, list[Any]] | list[dict[str, list[Any]]] = field(default_factory=list)
    """Options by key, one grid or several. An option may be a list: its name, then overrides that go with it."""
    cells: list[list[str]] = field(default_factory=list)
    set: list[str] = field(default_factory=list)
    profile: list[str] = field(default_factory=list)
    """Overrides of a study. In this scale's cells `method.temperature=profile` stands for its profile."""
    metric: str | dict[str, str] | None = None
    """Replaces the experiment's `metric` at this scale, for example where other judges are used."""

    def overrides(self) -> list[list[str]]:
        """One list of overrides per cell: the grids' combinations, then the single cells."""
        cells = list(self.cells)
        grids = [self.grid] if isinstance(self.grid, dict) else self.grid
        for grid in reversed(grids):
            listed = {
                key: [one if isinstance(one, list) else [one] for one in own]
                for key, own in grid.items()
            }
            axes = [
                [[f"{key}={name}", *more] for name, *more in own] for key, own in listed.items()
            ]
            cells[:0] = [list(chain.from_iterable(combination)) for combination in product(*axes)]
        return [[*cell, *self.set] for cell in cells]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table: its rows and columns, its cells at each scale, and the paper's numbers."""

    name: str
    title: str
    source: str
    rows: list[str]
    columns: list[str]
    metric: str | dict[str, str]
    """`headline`, an lm-eval `metric,filter`, an expert metric (`expert.load_balance`) or a number of a training
    (`training.validation_loss`); several by their names on the axis MEASURE."""
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
        metrics = [
            self.metric,
            *(scale.metric for scale in self.scales.values() if scale.metric is not None),
        ]
        if any(isinstance(metric, dict) != (MEASURE in self.keys) for metric in metrics):
            raise ConfigError("metric: {<name>: <metric>} goes with measure in rows or columns.")
        if self.figure == "recipe":
            return
        for i, published in enumerate(self.paper):
            if isinstance(published.value, str):
                raise ConfigError(f"paper[{i}].value={published.value}: expected a number.")

    def metrics(self, scale: str) -> dict[str, str]:
        """The metrics of a scale's cells by their names on the axis MEASURE. A single metric is its own name."""
        metric = self.scale(scale).metric or self.metric
        return metric if isinstance(metric, dict) else {metric: metric}

    @property
    def keys(self) -> list[str]:
        """All axes of its cells."""
        return list(
            dict.fromkeys([*self.rows, *self.columns, *([self.average] if self.average else [])])
        )

    def scale(self, name: str) -> Scale:
        """The cells of one scale. Raises ConfigError naming those that the experiment has."""
        if name not in self.scales:
            raise ConfigError(
                f"experiment={self.name} lacks scale={name}. It has: {', '.join(self.scales)}."
            )
        return self.scales[name]


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML has it. It reads the files of all experiments in 0.1 s, the other one in 0.5 s."""
OWN = "own"
"""The folder of this project's own studies."""


def find_experiments(names: str, config_dirs: Sequence[Path] = ()) -> list[Experiment]:
    """The experiments of `experiment=<name>,...|all`. A name is a file's, with its folder if needed.

    `all` has those of the papers, not this project's own studies in `experiments/own/`.

    They are the package's and those in `experiments/` of the folders of `--config-dir`. Raises ConfigError for an
    unknown or ambiguous name and for a malformed file.
    """
    files = experiment_files(config_dirs)
    if names == "all":
        own = resource_folder("experiments") / OWN
        chosen = [name for name, file in files.items() if file.parent != own]
    else:
        chosen = [_full_name(name.strip(), list(files)) for name in names.split(",")]
    return [load_experiment(name, files[name]) for name in dict.fromkeys(chosen)]


def load_experiment(name: str, file: Path) -> Experiment:
    """Read one file, every key checked."""
    with reading(file):
        values = yaml.load(file.read_text(encoding="utf-8"), Loader=LOADER)
        scales = {
            key: build(Scale, scale, f"scales.{key}.")
            for key, scale in values.get("scales", {}).items()
        }
        paper = read_published(values.get("paper") or [], file)
        return build(
            Experiment,
            {"metric": "headline", **values, "name": name, "scales": scales, "paper": paper},
            "",
        )


def _full_name(name: str, names: list[str]) -> str:
    if name in names:
        return name
    matches = [full for full in names if name == full.rpartition("/")[2]]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"experiment={name} is ambiguous. Choose one of: {', '.join(matches)}.")
    shown = names if "/" in name else [full.rpartition("/")[2] for full in names]
    raise ConfigError(
        f"Unknown experiment {name!r}.{did_you_mean(name, shown)} Choices: {', '.join(names)}, all, and those in "
        "<folder>/experiments with --config-dir <folder>."
    )
