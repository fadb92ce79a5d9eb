"""Scatter plots. Broken by a point outside of the axes, and by axes that blow up a small difference."""

from __future__ import annotations

from moe_lab.reports.pages.page import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Point, plot


def test_points_stand_between_the_axes():
    made = plot("t", "s", "acc", [Point("1", 2.0, 0.5, (0.4, 0.6)), Point("2", 8.0, 0.7, None)])
    first, second = made.points
    assert second["x"] == WIDTH - RIGHT and first["x"] == LEFT + (WIDTH - LEFT - RIGHT) / 4
    assert second["y"] == second["low"] == second["high"] == TOP
    assert first["low"] == HEIGHT - BOTTOM and first["high"] < first["y"] < first["low"]
    assert [label for _, label in made.y_ticks] == ["0.400", "0.550", "0.700"]


def test_a_difference_of_a_thousandth_stays_small():
    one, other = plot("t", "s", "acc", [Point("1", 1.0, 0.5, None), Point("2", 1.0, 0.501, None)]).points
    assert 0 < one["y"] - other["y"] < 0.06 * HEIGHT


def test_equal_and_zero_costs_are_drawn():
    assert [each["x"] for each in plot("t", "s", "acc", [Point("1", 0.0, 0.5, None)] * 2).points] == [
        LEFT,
        LEFT,
    ]
