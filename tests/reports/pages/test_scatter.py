"""Scatter plots. Broken by a point outside of the axes, and by axes that blow up a small difference."""

from __future__ import annotations

from moe_lab.reports.pages.plots import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Point,
    plot,
    round_ticks,
    tick_labels,
)


def test_points_stand_between_the_axes():
    made = plot("t", "s", "acc", [Point("1", 2.0, 0.5, (0.4, 0.6)), Point("2", 8.0, 0.7, None)])
    first, second = made.points
    assert second["x"] == WIDTH - RIGHT and first["x"] == LEFT + (WIDTH - LEFT - RIGHT) / 4
    assert second["y"] == second["low"] == second["high"] == TOP
    assert first["low"] == HEIGHT - BOTTOM and first["high"] < first["y"] < first["low"]
    assert [label for _, label in made.y_ticks] == ["0.4", "0.5", "0.6", "0.7"]


def test_a_difference_of_a_thousandth_stays_small():
    one, other = plot("t", "s", "acc", [Point("1", 1.0, 0.5, None), Point("2", 1.0, 0.501, None)]).points
    assert 0 < one["y"] - other["y"] < 0.06 * HEIGHT


def test_equal_and_zero_costs_are_drawn():
    assert [each["x"] for each in plot("t", "s", "acc", [Point("1", 0.0, 0.5, None)] * 2).points] == [
        LEFT,
        LEFT,
    ]


def test_ticks_are_round_and_within():
    assert round_ticks(-0.03, 0.11) == [0.0, 0.05, 0.1] and round_ticks(0, 7.3) == [0, 2, 4, 6]
    assert tick_labels(round_ticks(-0.1, 0.1), True) == ["\u22120.10", "\u22120.05", "0", "+0.05", "+0.10"]
    for i in range(1, 400):
        low, high = -(i**1.7) / 7e3, (i**2.1) / 3e4
        ticks = round_ticks(low, high)
        assert 2 <= len(ticks) <= 5 and low - 1e-9 <= ticks[0] and ticks[-1] <= high + 1e-9, (low, high)


def test_labels_that_would_lie_on_one_another_are_one():
    points = [Point("1", 2.0, 0.5, None), Point("2", 2.01, 0.5, None), Point("3", 8.0, 0.7, None)]
    assert [label for *_, label in plot("t", "s", "acc", points).labels] == ["1, 2", "3"]
