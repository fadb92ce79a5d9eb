"""Titles and axes of a drawn figure. Broken by a title that is cut, and by an axis that makes little of much."""

from __future__ import annotations

from itertools import pairwise

import matplotlib
import pytest

from moe_lab.reports.figures.primitives import legend_below, panels
from moe_lab.reports.figures.style import COVERED, LEAST_SPAN, RC, fit, widen_x

LONG = "A long title of a table, with its models, its tasks and its settings (scale tiny, limit=20) " * 2


def drawn(count, values=(0.5, 0.501)):
    figure, axes = panels(count)
    figure.suptitle(LONG)
    for number, axis in enumerate(axes):
        for place, value in enumerate(values):
            axis.plot(place, value, "o", label=f"a line with a rather long name, number {number}.{place}")
        axis.set(title=LONG[:70], ylabel="accuracy")
    legend_below(figure, axes)
    return figure, axes


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nothing_is_cut_at_the_sides(count):
    with matplotlib.rc_context(RC):
        figure, axes = drawn(count)
        fit(figure)
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in [*figure.texts, *(axis.title for axis in axes)]]
        boxes += [legend.get_window_extent() for legend in figure.legends]
    assert len(figure.legends) == 1
    for box in boxes:
        assert box.x0 >= -1 and box.x1 <= figure.bbox.width + 1
    titles = sorted((box for box in boxes[1 : count + 1]), key=lambda box: box.x0)
    assert all(left.x1 <= right.x0 + 8 for left, right in pairwise(titles))
    assert " ".join(figure.texts[0].get_text().split()) == LONG.strip()


def test_a_short_title_stays_as_it_is():
    figure, _ = panels(2)
    figure.suptitle("Short\ntitle")
    fit(figure)
    assert figure.texts[0].get_text() == "Short\ntitle"


@pytest.mark.parametrize(
    ("values", "span"),
    [((0.5, 0.501), LEAST_SPAN), ((3.4, 3.4005), LEAST_SPAN), ((0.2, 0.6), 0.44), ((10.0, 30.0), 22.0)],
)
def test_small_differences_look_small(values, span):
    figure, [axis] = drawn(1, values)
    fit(figure)
    low, high = axis.get_ylim()
    assert high - low == pytest.approx(span) and low < min(values) <= max(values) < high
    assert (low + high) / 2 == pytest.approx(sum(values) / 2)


def test_limits_that_are_given_and_logarithms_stay():
    figure, axes = panels(2)
    for axis in axes:
        axis.plot([1, 2], [0.5, 0.501])
    axes[0].set_ylim(0.6, 0.4999)
    axes[1].set_yscale("log")
    before = axes[1].get_ylim()
    fit(figure)
    assert axes[0].get_ylim() == (0.6, 0.4999) and axes[1].get_ylim() == before


def test_settings_across_fill_the_width_and_measurements_across_do_not():
    """A sweep up to a temperature of 0.01 is not squeezed."""
    figure, axes = panels(2)
    for axis in axes:
        axis.plot([0.0, 0.01], [0.5, 0.501])
    widen_x(axes[1])
    fit(figure)
    (low, high), (left, right) = (axis.get_xlim() for axis in axes)
    assert high - low == pytest.approx(0.011) and right - left == pytest.approx(LEAST_SPAN)


def test_an_inverted_axis_stays_inverted():
    figure, [axis] = panels(1)
    axis.plot([0, 1], [0.5, 0.501])
    axis.yaxis.set_inverted(True)
    fit(figure)
    high, low = axis.get_ylim()
    assert high - low == pytest.approx(LEAST_SPAN)


def test_curves_that_lie_on_one_another_are_seen():
    figure, (axis,) = panels(1)
    values = {"a": [0.0, 1.0, 2.0], "b": [0.0, 1.0, 2.001], "c": [0.0, 1.0, 1.5], "d": [0.0, 1.0, 2.0]}
    drawn = {name: axis.plot([1, 2, 3], value, marker="o", label=name)[0] for name, value in values.items()}
    axis.plot([1, 2, 3], values["a"])  # without a name in the legend, such as an interval
    before = {name: line.get_linewidth() for name, line in drawn.items()}
    fit(figure)
    wider = {name: (line.get_linewidth() - before[name]) / COVERED for name, line in drawn.items()}
    assert wider == pytest.approx({"a": 2, "b": 1, "c": 0, "d": 0})
    assert drawn["a"].get_markersize() > drawn["b"].get_markersize() > drawn["d"].get_markersize()


def test_ticks_are_round_and_those_set_by_hand_stay():
    """matplotlib's own are multiples of 0.025 here."""
    figure, axes = panels(2)
    for axis in axes:
        axis.plot([0.273, 0.442], [0.0, 0.2])
    axes[1].set_xticks([0.3, 0.325])
    fit(figure)
    steps = {round(float(b - a), 9) for a, b in pairwise(axes[0].get_xticks())}
    assert steps in ({0.02}, {0.05}) and list(axes[1].get_xticks()) == [0.3, 0.325]
