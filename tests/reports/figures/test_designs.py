"""Broken by tasks drawn beside their average, by a dense model among the bars, by a loss under each task."""

from __future__ import annotations

import pytest

from moe_lab.reports.figures.training import design_rows, write_designs
from moe_lab.reports.papers.cells import CellTable
from moe_lab.reports.papers.experiment import Published
from tests.support.finetuned_cells import records
from tests.support.pretrained_cells import design_cells, experiment

AXES = {"rows": ["method.label"], "columns": ["method.backbone", "task", "measure"]}


def cells():
    return [
        cell
        for label in ("2/8", "16/64", "dense")
        for backbone in (["dense"] if label == "dense" else ["olmoe", "deepseek"])
        for cell in design_cells(label, [[2.0, 2.2]], coordinates={"method.backbone": backbone})
    ]


def test_averages_and_losses_of_each_design_are_drawn(tmp_path):
    place = {"method.label": "2/8", "method.backbone": "olmoe", "task": "average", "measure": "accuracy"}
    paper = [Published(cell=place, value=35.0, unit="percent", place="T")]
    table = CellTable(experiment(**AXES, paper=paper), cells())
    rows = records(design_rows(table))
    assert [(row["panel"], row["design"], row["series"]) for row in rows] == [
        (panel, label, backbone)
        for panel in ("held-out loss", "accuracy")
        for label, backbone in (("2/8", "olmoe"), ("2/8", "deepseek"), ("16/64", "olmoe"), ("16/64", "deepseek"),
                                ("dense", "dense"))
    ]  # fmt: skip
    assert [row["published"] for row in rows if row["published"]] == [0.35]
    assert rows[0]["documents"] is None and rows[5]["documents"] == 8
    png, _ = write_designs(table, tmp_path, "f", "T")
    assert png.stat().st_size > 10_000


def test_the_interval_at_a_loss_is_that_of_its_paired_difference():
    told = design_cells("2/8", [[2.0, 3.0, 4.0]]) + design_cells("4/16", [[2.1, 3.1, 4.1]])
    lowest, other, *_ = records(design_rows(CellTable(experiment(), told)))
    assert (lowest["value"], lowest["low"]) == (3.0, None)
    assert (other["low"], other["high"]) == (pytest.approx(3.1), pytest.approx(3.1))


def test_one_task_is_drawn_as_it_is():
    told = [cell for cell in cells() if cell.coordinates["task"] != "b"]
    rows = records(design_rows(CellTable(experiment(**AXES), told)))
    assert {row["panel"] for row in rows} == {"held-out loss", "accuracy"} and len(rows) == 10


def test_nothing_measured_draws_nothing(tmp_path):
    assert write_designs(CellTable(experiment(), []), tmp_path, "f", "T") == []
