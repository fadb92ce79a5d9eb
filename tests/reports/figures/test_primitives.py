"""What the primitives draw. Broken by an interval at another point, or of a point that has none."""

from __future__ import annotations

import pytest
from pandas import DataFrame

from moe_lab.reports.figures.primitives import bars, curve, panels, points


def rows(**columns):
    return DataFrame({"x": [1, 2, 4], "value": [0.2, 0.5, 0.4]} | columns, dtype=object)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_curve_has_bars_where_it_has_limits_and_a_band_where_all_have_them(missing):
    _, (some, none, all_) = panels(3)
    partly = rows(low=[0.1, missing, 0.3], high=[0.3, missing, 0.6])
    curve(some, partly, "x")
    curve(none, partly, "x", band="95% interval")
    assert [segment.tolist() for segment in some.collections[0].get_segments()] == [
        [[1, 0.1], [1, 0.3]],
        [[4, 0.3], [4, 0.6]],
    ]
    assert not none.collections
    curve(all_, rows(low=[0.1, 0.4, 0.3], high=[0.3, 0.6, 0.6]), "x", band="95% interval")
    assert len(all_.collections) == 1 and all_.lines[0].get_xydata().tolist() == [
        [1, 0.2],
        [2, 0.5],
        [4, 0.4],
    ]


def test_published_values_stand_beside_the_measured_ones():
    _, (axis,) = panels(1)
    curve(axis, rows(published=[None, 0.45, None]), "x")
    assert axis.lines[-1].get_xydata().tolist() == [[2, 0.45]]


def test_each_point_is_in_the_line_of_its_name():
    _, (axis,) = panels(1)
    frame = rows(
        name=["b", "a", "c"], low=[0.1, None, 0.3], high=[0.3, None, 0.6], published=[None, None, 0.7]
    )
    points(axis, frame, "name", lambda row: {"color": "red"}, ["a", "b", "c"])
    drawn = [line.get_xydata().tolist() for line in axis.lines]
    assert drawn == [
        [[0.1, 1], [0.3, 1]],
        [[0.2, 1]],
        [[0.5, 0]],
        [[0.3, 2], [0.6, 2]],
        [[0.4, 2]],
        [[0.7, 2]],
    ]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["a", "b", "c"] and axis.yaxis_inverted()


def test_bars_of_two_series_stand_beside_each_other_and_a_loss_is_points():
    _, (shares, losses) = panels(2)
    frame = DataFrame(
        {"task": ["t", "u", "u"], "by": ["a", "a", "b"], "value": [0.1, 0.2, 0.3]}, dtype=object
    )
    for axis, filled in ((shares, True), (losses, False)):
        bars(axis, frame, "task", "by", order=["u", "t"], series=["a", "b"], filled=filled)
    found = [(patch.get_x() + patch.get_width() / 2, patch.get_height()) for patch in shares.patches]
    assert found == [pytest.approx(pair) for pair in ((0.8, 0.1), (-0.2, 0.2), (0.2, 0.3))]
    assert not losses.patches and [len(line.get_xydata()) for line in losses.lines] == [2, 1]
