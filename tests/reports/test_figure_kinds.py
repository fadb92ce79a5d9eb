"""A kind of figure is one function. Broken by a second place that has to know its name."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from moe_lab.errors import ConfigError
from moe_lab.methods import get_method, method_names
from moe_lab.models.memory import ModelPool
from moe_lab.reports.figures.primitives import panels
from moe_lab.reports.figures.style import Drawing
from moe_lab.reports.papers.cells import CellTable, TableCell
from moe_lab.reports.papers.experiment import FIGURES, Experiment, load_experiment
from moe_lab.results.atomic import write_file
from moe_lab.results.score_table import NO_COMPARISONS
from moe_lab.runs.experiments.runner import make_figure
from tests.support.stored_results import results_of
from tests.support.views import markdown

EXPERIMENT = """
title: Table T
source: A paper
scales: {tiny: {cells: [[method=base]]}}
rows: [method]
columns: [task]
figure: dots
"""


def draw_dots(table: CellTable) -> Drawing:
    rows = table.frame()[["method", "value"]]

    def draw(title: str):
        figure, axes = panels(1)
        axes[0].plot(rows["method"], rows["value"], "o")
        axes[0].set_title(title)
        return figure

    return Drawing(rows.to_dict("records"), draw)


def loaded(folder: Path) -> Experiment:
    file = folder / "t.yaml"
    file.write_text(EXPERIMENT)
    return load_experiment("t", file)


def test_a_kind_of_the_registry_is_accepted_and_drawn(monkeypatch, tmp_path):
    module = ModuleType("moe_lab.reports.figures.dots")
    module.draw_dots = draw_dots  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(FIGURES, "dots", ("cells", "dots"))
    experiment = loaded(tmp_path)
    cells = [
        TableCell(coordinates={"method": name, "task": "t"}, run_id="r", results=[results_of(name)])
        for name in ("base", "roe")
    ]
    folder = tmp_path / "tables"
    write_file(folder / "t-tiny.md", markdown(experiment, "tiny", cells))
    png, table = make_figure(experiment, "tiny", cells, ModelPool(), folder, NO_COMPARISONS)
    assert (png.name, table.name) == ("t-tiny-dots.png", "t-tiny-dots.csv")
    assert table.read_text() == "method,value\nbase,0.5\nroe,0.5\n"


def test_a_kind_that_is_not_in_the_registry_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="figure=dots is unknown"):
        loaded(tmp_path)


def test_the_kinds_that_methods_declare_are_drawn_from_traces():
    declared = {kind for name in method_names() for kind in get_method(name).figures}
    assert {FIGURES[kind][0] for kind in declared} == {"traces"}
