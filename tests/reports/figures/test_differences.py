"""The forest plot. Broken by a row out of order, a filled point that is not significant, a p of another row."""

from __future__ import annotations

from moe_lab.reports.figures.differences import Difference, differences_figure


def row(label: str, difference: float, p: float | None, task: str = "t") -> Difference:
    limits = {"low": difference - 0.1, "high": difference + 0.1}
    return Difference(
        label=label, task=task, metric="acc,none", difference=difference, p=p, examples=1200, **limits
    )


def test_rows_are_sorted_and_significant_ones_filled():
    figure = differences_figure([row("a", -0.2, 0.5), row("b", 0.3, 0.01), row("c", 0.1, None)], "Title")
    [axis] = figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["b", "a", "c"]
    points = [line for line in axis.lines if line.get_marker() == "o"]
    assert [point.get_xdata()[0] for point in points] == [0.3, -0.2, 0.1]
    assert [point.get_markerfacecolor() == "white" for point in points] == [False, True, True]
    [p] = axis.child_axes
    assert [text.get_text() for text in p.get_yticklabels()] == ["p = 0.01", "p = 0.5", ""]
    assert "filled: significant after Holm" in axis.get_xlabel() and "1,200" in axis.get_title()


def test_each_task_has_a_panel():
    figure = differences_figure([row("a", 0.2, 0.5, "one"), row("a", 0.3, 0.5, "two")])
    assert [axis.get_title() for axis in figure.axes] == ["two, 1,200 examples", "one, 1,200 examples"]
