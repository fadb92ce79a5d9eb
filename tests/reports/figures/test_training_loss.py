"""Broken by: a curve with the held-out losses in it, a phase line at another step, a log without one of both."""

from __future__ import annotations

import csv
import json

import pytest
from matplotlib.axes import Axes

from moe_lab.reports.figures.training import write_training_loss


@pytest.fixture
def drawn(monkeypatch):
    """Label and points of every curve, and the steps of vertical lines."""
    curves, switches = {}, []
    plot, line = Axes.plot, Axes.axvline

    def record(self, x, y, *args, **options):
        curves[options["label"]] = list(zip(x, y, strict=True))
        return plot(self, x, y, *args, **options)

    monkeypatch.setattr(Axes, "plot", record)
    monkeypatch.setattr(
        Axes, "axvline", lambda self, x, **options: switches.append(x) or line(self, x, **options)
    )
    return curves, switches


def write(folder, *lines: dict, held_out: str = "validation_loss"):
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_training_loss(folder, held_out)
    assert (folder / "figures" / "loss.png").stat().st_size > 1000
    return list(csv.DictReader((folder / "figures" / "loss.csv").open()))


def test_both_losses_are_drawn_by_step(tmp_path, drawn):
    rows = write(
        tmp_path,
        {"step": 2, "loss": 3.0, "learning_rate": 0.1, "balance_loss": [0.2, 0.3]},
        {"step": 2, "validation_loss": 3.5},
        {"step": 4, "loss": 2.0, "learning_rate": 0.2},
        {"step": 4, "validation_loss": 2.5},
    )
    curves, switches = drawn
    assert curves == {"training": [(2, 3.0), (4, 2.0)], "validation": [(2, 3.5), (4, 2.5)]}
    assert switches == []
    assert [row["step"] for row in rows] == ["2", "2", "4", "4"]
    assert [row["validation_loss"] for row in rows] == ["", "3.5", "", "2.5"]
    assert [row["loss"] for row in rows] == ["3.0", "", "2.0", ""]


def test_a_line_stands_at_the_end_of_each_phase(tmp_path, drawn):
    logged = [{"step": step, "loss": 1.0, "phase": phase} for step, phase in ((1, 1), (2, 1), (3, 2), (4, 2))]
    write(tmp_path, *logged[:2], {"step": 2, "held": 1.5}, *logged[2:], held_out="held")
    assert drawn[1] == [2] and drawn[0]["validation"] == [(2, 1.5)]


def test_without_held_out_rows_there_is_one_curve(tmp_path, drawn):
    write(tmp_path, {"step": 1, "loss": 1.0})
    assert list(drawn[0]) == ["training"]
