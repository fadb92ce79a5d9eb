"""What a figure draws, and kinds of figures: each is one function.

Broken by an interval at another point, a title that is cut, an axis that makes much of little,
and a second place that has to know the name of a kind.
"""

import csv
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from pandas import DataFrame

from moe_lab.errors import ConfigError
from moe_lab.methods import get_method, method_names
from moe_lab.models.memory import ModelPool
from moe_lab.reports.figures.comparisons import draw_accuracy, draw_control
from moe_lab.reports.figures.cost import draw_equivalent, draw_overhead
from moe_lab.reports.figures.drawing import SVG_METADATA, Drawing, picture
from moe_lab.reports.figures.fit import LEAST_SPAN, fit, widen_x
from moe_lab.reports.figures.panels import legend_below, panels, stacked_panels
from moe_lab.reports.figures.primitives import bars, curve, curves, points
from moe_lab.reports.figures.style import styled
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment, load_experiment
from moe_lab.reports.papers.figure_kinds import FIGURES
from moe_lab.results.atomic import write_file
from moe_lab.results.family import NO_COMPARISONS
from moe_lab.runs.experiments.figure import make_figure
from tests.support.stored_results import cell_of, cell_table, overhead_cell, results_of
from tests.support.views import markdown


def rows(**columns):
    return DataFrame({"x": [1, 2, 4], "value": [0.2, 0.5, 0.4]} | columns, dtype=object)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_curve_has_bars_where_it_has_limits_and_a_band_where_all_have_them(missing):
    _, (some_limits, none, all_) = panels(3)
    partly = rows(low=[0.1, missing, 0.3], high=[0.3, missing, 0.6])
    curve(some_limits, partly, "x")
    curve(none, partly, "x", band="95% interval")
    expected = [[[1, 0.1], [1, 0.3]], [[4, 0.3], [4, 0.6]]]
    assert [segment.tolist() for segment in some_limits.collections[0].get_segments()] == expected
    assert not none.collections
    curve(all_, rows(low=[0.1, 0.4, 0.3], high=[0.3, 0.6, 0.6]), "x", band="95% interval")
    assert len(all_.collections) == 1
    assert all_.lines[0].get_xydata().tolist() == [[1, 0.2], [2, 0.5], [4, 0.4]]


def test_published_values_stand_beside_the_measured_ones():
    _, (axis,) = panels(1)
    curve(axis, rows(published=[None, 0.45, None]), "x")
    assert axis.lines[-1].get_xydata().tolist() == [[2, 0.45]]


def test_each_point_is_in_the_line_of_its_name():
    _, (axis,) = panels(1)
    limits = {"low": [0.1, None, 0.3], "high": [0.3, None, 0.6]}
    frame = rows(name=["b", "a", "c"], published=[None, None, 0.7], **limits)
    points(axis, frame, "name", lambda row: {"color": "red"}, ["a", "b", "c"])
    drawn = [line.get_xydata().tolist() for line in axis.lines]
    expected = [
        [[0.1, 1], [0.3, 1]],
        [[0.2, 1]],
        [[0.5, 0]],
        [[0.3, 2], [0.6, 2]],
        [[0.4, 2]],
        [[0.7, 2]],
    ]
    assert drawn == expected
    assert [text.get_text() for text in axis.get_yticklabels()] == [
        "a",
        "b",
        "c",
    ]
    assert axis.yaxis_inverted()


def test_bars_of_two_series_stand_beside_each_other_and_a_loss_is_points():
    _, (shares, losses) = panels(2)
    columns = {"task": ["t", "u", "u"], "by": ["a", "a", "b"], "value": [0.1, 0.2, 0.3]}
    frame = DataFrame(columns, dtype=object)
    for axis, filled in ((shares, True), (losses, False)):
        bars(axis, frame, "task", "by", order=["u", "t"], series=["a", "b"], filled=filled)
    centers_and_heights = []
    for patch in shares.patches:
        centers_and_heights.append((patch.get_x() + patch.get_width() / 2, patch.get_height()))
    # u is at 0 and t at 1; a is on the left of b
    expected = [(0.8, 0.1), (-0.2, 0.2), (0.2, 0.3)]
    assert centers_and_heights == [pytest.approx(pair) for pair in expected]
    assert not losses.patches
    points_of_series = [len(line.get_xydata()) for line in losses.lines]
    assert points_of_series == [2, 1]


EQUIVALENT = {"model": "m", "device": "cpu", "task": "t", "documents": 5, "new_tokens": 128}
EQUIVALENT |= {"n": 2, "layers": 8, "calibrated_size_ratio": 1.05}
EQUIVALENT |= {
    "equivalent_layers": 9,
    "size_ratio": 1.1,
    "size_ratio_low": 1.0,
    "size_ratio_high": 1.2,
}
EQUIVALENT |= {
    "base_milliseconds_per_token": 1.0,
    "base_mebibytes": 1.0,
    "roe_milliseconds_per_token": 1.0,
    "roe_mebibytes": 1.0,
    "equivalent_milliseconds_per_token": 1.0,
    "equivalent_mebibytes": 1.0,
}


@pytest.mark.parametrize(
    "draw",
    [
        lambda: draw_accuracy(cell_table(cell_of(), cell_of(method="base"))),
        lambda: draw_control(cell_table(cell_of(), cell_of(method="base"))),
        lambda: draw_overhead(cell_table(overhead_cell(1, 1.0), overhead_cell(8, 9.0))),
        lambda: draw_equivalent([EQUIVALENT, EQUIVALENT | {"n": 4}]),
    ],
    ids=["accuracy", "control", "overhead", "equivalent"],
)
def test_each_kind_leaves_a_picture_and_its_numbers(draw, tmp_path):
    png, table = draw().save(tmp_path, "f", "T")
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert (png.name, table.name) == ("f.png", "f.csv")
    with table.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2


LONG = (
    "A long title of a table, with its models, its tasks and its settings (scale tiny, limit=20) "
    * 2
)


def drawn(count, values=(0.5, 0.501)):
    figure, axes = panels(count)
    figure.suptitle(LONG)
    for number, axis in enumerate(axes):
        for place, value in enumerate(values):
            axis.plot(
                place, value, "o", label=f"a line with a rather long name, number {number}.{place}"
            )
        axis.set(title=LONG[:70], ylabel="accuracy")
    legend_below(figure, axes)
    return figure, axes


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nothing_is_cut_at_the_sides(count):
    with styled():
        figure, axes = drawn(count)
        fit(figure)
        figure.draw_without_rendering()
        texts = [text.get_window_extent() for text in figure.texts]
        titles = [axis.title.get_window_extent() for axis in axes]
        legends = [legend.get_window_extent() for legend in figure.legends]
    assert len(texts) == 1
    assert len(titles) == count
    assert len(legends) == 1
    for box in texts + titles + legends:
        assert box.x0 >= -1
        assert box.x1 <= figure.bbox.width + 1
    titles.sort(key=lambda box: box.x0)
    for left_title, right_title in pairwise(titles):
        assert left_title.x1 <= right_title.x0 + 8
    assert " ".join(figure.texts[0].get_text().split()) == LONG.strip()


def test_a_short_title_limits_that_are_given_logarithms_and_an_inverted_axis_stay():
    figure, axes = panels(3)
    figure.suptitle("Short\ntitle")
    for axis in axes:
        axis.plot([1, 2], [0.5, 0.501])
    axes[0].set_ylim(0.6, 0.4999)
    axes[1].set_yscale("log")
    axes[2].yaxis.set_inverted(True)
    before = axes[1].get_ylim()
    fit(figure)
    assert figure.texts[0].get_text() == "Short\ntitle"
    assert axes[0].get_ylim() == (0.6, 0.4999)
    assert axes[1].get_ylim() == before
    high, low = axes[2].get_ylim()
    assert high - low == pytest.approx(LEAST_SPAN)


@pytest.mark.parametrize(
    ("values", "span"),
    [
        ((0.5, 0.501), LEAST_SPAN),
        ((3.4, 3.4005), LEAST_SPAN),
        ((0.2, 0.6), 0.44),
        ((10.0, 30.0), 22.0),
    ],
)
def test_small_differences_look_small(values, span):
    figure, [axis] = drawn(1, values)
    fit(figure)
    low, high = axis.get_ylim()
    assert high - low == pytest.approx(span)
    assert low < min(values) <= max(values) < high
    assert (low + high) / 2 == pytest.approx(sum(values) / 2)


def test_settings_across_fill_the_width_and_measurements_across_do_not():
    """A sweep up to a temperature of 0.01 is not squeezed."""
    figure, axes = panels(2)
    for axis in axes:
        axis.plot([0.0, 0.01], [0.5, 0.501])
    widen_x(axes[1])
    fit(figure)
    (low, high), (left_limit, right) = (axis.get_xlim() for axis in axes)
    assert high - low == pytest.approx(0.011)
    assert right - left_limit == pytest.approx(LEAST_SPAN)


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


# What users give: many series, names of any characters, missing numbers, backends of notebooks


@pytest.mark.parametrize("count", [7, 9, 20])
def test_every_series_is_drawn_and_looks_like_no_other(count):
    names = [f"s{number}" for number in range(count)]
    rows = []
    for name in names:
        rows.append({"x": 1, "value": 0.1, "line": name})
        rows.append({"x": 2, "value": 0.2, "line": name})
    _, [curve_axis, bar_axis] = panels(2)
    curves(curve_axis, DataFrame(rows), "x")
    looks = {(line.get_color(), line.get_marker()) for line in curve_axis.lines}
    assert [line.get_label() for line in curve_axis.lines] == names
    assert len(looks) == count
    bars(bar_axis, DataFrame(rows), "x", "line", order=[1, 2], series=names)
    assert len(bar_axis.patches) == 2 * count


def test_several_settings_of_a_method_have_bars_of_their_own():
    cells = [
        replace(cell_of(n=n), coordinates={"method": "roe", "method.n": str(n)}) for n in (2, 8)
    ]
    drawing = draw_accuracy(cell_table(*cells))
    figure = drawing.draw("")
    assert len({bar.get_x() for bar in figure.axes[0].patches}) == 2


@pytest.mark.parametrize(
    "name", ["cost $5_{ and $", "中文 模型", "日本語", "한국어", "100 % & #1 \\alpha ^~"]
)
def test_names_of_any_characters_are_drawn_without_a_warning(name, recwarn):
    with styled():
        figure, [axis] = panels(1)
        axis.set_title(name)
        fit(figure)
    content = picture(figure, "svg", SVG_METADATA).decode()
    assert name.split(" ")[0].replace("&", "&amp;") in content
    assert not recwarn.list


def test_missing_values_leave_a_place_empty():
    rows = DataFrame(
        [{"x": "a", "line": "s", "value": None, "low": None, "high": None}], dtype=object
    )
    _, axes = panels(3)
    curves(axes[0], rows.assign(x=1), "x")
    bars(axes[1], rows, "x", "line", order=["a"], series=["s"])
    points(axes[2], rows, "x", lambda row: {"color": "black"}, ["a"])
    assert not axes[1].patches
    assert not axes[2].lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["module://matplotlib_inline.backend_inline", "inline", "widget"]
)
def test_the_backend_of_a_notebooks_kernel_is_not_needed(backend):
    """Processes of a kernel get its MPLBACKEND.

    matplotlib cannot be imported where the backend's package is missing.
    """
    code = "import moe_lab.reports.figures, matplotlib; print(matplotlib.__version__)"
    environment = os.environ | {"MPLBACKEND": backend}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)


def test_the_time_of_many_panels_does_not_grow_with_their_square():
    assert (
        type(stacked_panels(9, [1] * 9, "")[0].get_layout_engine()).__name__
        == "ConstrainedLayoutEngine"
    )
    assert (
        type(stacked_panels(99, [1] * 99, "")[0].get_layout_engine()).__name__
        == "TightLayoutEngine"
    )
