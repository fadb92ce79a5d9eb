"""Figures of trainings. Broken by a training drawn once for each measure, one setting's lines in another one's panel, a lost
seed, and a phase line at another step."""

import csv
import json
from dataclasses import replace
from itertools import product

import pytest
from matplotlib.axes import Axes

from moe_lab.reports.figures.comparisons import write_forest
from moe_lab.reports.figures.curves import schedule_label, schedule_rows, write_lines, write_schedules
from moe_lab.reports.figures.training import curve_rows, write_training_curves, write_training_loss
from moe_lab.reports.papers.cells import CellTable, TableCell
from moe_lab.reports.papers.experiment import Experiment
from tests.support.finetuned_cells import KEYS, bars, cell, cells, records
from tests.support.pretrained_cells import design_cells, experiment, trained_results


def test_each_column_is_a_panel_with_the_average_last(tmp_path):
    rows = records(schedule_rows(CellTable(bars(), cells())))
    assert [row["panel"] for row in rows] == ["arc", "piqa"] * 3 + ["average"] * 3
    found = {(row["panel"], row["schedule"]): row for row in rows}
    assert found["piqa", "N→R"]["value"] == pytest.approx(0.7)
    assert found["average", "E→E"]["value"] == pytest.approx(0.8)
    assert found["average", "N→R"]["published"] == 0.65 and found["arc", "N→R"]["published"] is None
    png, _ = write_schedules(CellTable(bars(), cells()), tmp_path, "f", "T")
    assert png.stat().st_size > 10_000


def test_a_forest_has_a_point_for_each_setting_with_the_average_last(tmp_path):
    png, table = write_forest(CellTable(bars(), cells()), tmp_path, "f", "T")
    rows = list(csv.DictReader(table.open()))
    found = {(row["panel"], row["setting"]): (row["method"], float(row["value"])) for row in rows}
    assert list(dict.fromkeys(panel for panel, _ in found)) == ["arc", "piqa", "average"]
    assert found["arc", "base"] == ("finetune-freeze", pytest.approx(0.1)), "the method of the run"
    assert found["average", "finetune-freeze, experts"][1] == pytest.approx(0.8) and len(found) == 9
    assert png.stat().st_size > 10_000


def test_an_average_without_its_axis_stands_alone():
    told = [replaced(one, model="tiny") for one in cells()]
    rows = records(schedule_rows(CellTable(bars(columns=["model"]), told)))
    expected = [("tiny", "base"), ("tiny", "N→R"), ("tiny", "E→E")]
    assert [(row["panel"], row["schedule"]) for row in rows] == expected


def replaced(one: TableCell, **coordinates) -> TableCell:
    return cell(
        one.score().value, **{k.replace(".", "__"): v for k, v in (one.coordinates | coordinates).items()}
    )


@pytest.mark.parametrize(
    ("schedule", "rate", "label"),
    [
        ("none-router", "-", "N→R"),
        ("experts", "-", "E→E"),
        ("none", "1e-05", "N→N, router 1e-05"),
        ("-", "-", "base"),
    ],
)
def test_schedules_bear_the_papers_names(schedule, rate, label):
    assert schedule_label({"method.schedule": schedule, "method.router_lr": rate}) == label


def test_nothing_measured_draws_nothing(tmp_path):
    missing = TableCell(coordinates={"task": "a", "method.schedule": "none", "method": "x"}, run_id=None)
    assert write_schedules(CellTable(bars(average=None), [missing]), tmp_path, "f", "T") == []
    lines = Experiment(**KEYS, rows=["method.schedule"], columns=["task"], metric="headline", paper=[])
    assert write_lines(CellTable(lines, [missing]), tmp_path, "g", "T") == []


AXES = {"rows": ["method.label"], "columns": ["method.regularizers", "method.shared_experts", "measure"]}
LOG = [{"loss": 4.0, "step": 20}, {"validation_loss": 9.0, "step": 20}, {"loss": 3.0, "step": 40}]


def cells_of(label: str, setting: str, shared: str, folder):
    cells = design_cells(
        label, [[2.0, 2.0]], coordinates={"method.regularizers": setting, "method.shared_experts": shared}
    )
    for one in cells:
        results = (
            trained_results([2.0, 2.0], seed=seed, run_id=f"r{seed}", pretrain=training(seed))
            for seed in (0, 1)
        )
        one.results[:] = [replace(result, folder=folder / "runs" / "r") for result in results]
    return cells


def training(seed: int) -> dict:
    return {"model": f"m{seed}", "training": {"validation": {"loss": 2.0, "ci95": None}}}


def test_a_panel_has_a_line_for_each_granularity(tmp_path):
    for seed in (0, 1):
        (tmp_path / "models" / f"m{seed}").mkdir(parents=True)
        lines = [line | ({"loss": line["loss"] + seed} if "loss" in line else {}) for line in LOG]
        (tmp_path / "models" / f"m{seed}" / "log.jsonl").write_text(
            "".join(json.dumps(each) + "\n" for each in lines)
        )
    cells = [
        cell
        for label, setting, shared in (
            ("2/8", "z-loss", "0"),
            ("16/64", "z-loss", "0"),
            ("1/7+1", "z-loss", "1"),
        )
        for cell in cells_of(label, setting, shared, tmp_path)
    ]
    table = CellTable(experiment(**AXES), cells)
    png, found = write_training_curves(table, tmp_path, "f", "T")
    rows = list(csv.DictReader(found.open()))
    assert [(row["panel"], row["line"], row["seed"], row["step"], row["loss"]) for row in rows[:4]] == [
        ("z-loss, shared experts: 0", "2/8", "0", "20", "4.0"),
        ("z-loss, shared experts: 0", "2/8", "0", "40", "3.0"),
        ("z-loss, shared experts: 0", "2/8", "1", "20", "5.0"),
        ("z-loss, shared experts: 0", "2/8", "1", "40", "4.0"),
    ]
    assert {row["difference"] for row in rows} == {"0.0"}
    assert len(rows) == 3 * 2 * 2 and rows[-1]["panel"] == "z-loss, shared experts: 1"
    assert png.stat().st_size > 10_000


def test_differences_are_to_the_first_line_of_the_same_seed(tmp_path):
    for seed, name in product((0, 1), ("m", "n")):
        (tmp_path / "models" / f"{name}{seed}").mkdir(parents=True)
        line = {"loss": 3.0 + seed + (0.5 + seed) * (name == "n"), "step": 20}
        (tmp_path / "models" / f"{name}{seed}" / "log.jsonl").write_text(json.dumps(line) + "\n")
    first, second = cells_of("2/8", "z-loss", "0", tmp_path), cells_of("4/16", "z-loss", "0", tmp_path)
    for one in second:
        for seed, results in enumerate(one.results):
            results["moe_lab"]["pretrain"] = training(seed) | {"model": f"n{seed}"}
    rows = curve_rows(CellTable(experiment(**AXES), [*first, *second]))
    assert [(row["line"], row["seed"], row["difference"]) for row in rows] == [
        ("2/8", 0, 0.0), ("2/8", 1, 0.0), ("4/16", 0, 0.5), ("4/16", 1, 1.5)]  # fmt: skip


def test_runs_without_a_log_draw_nothing(tmp_path):
    cells = cells_of("2/8", "z-loss", "0", tmp_path)
    assert write_training_curves(CellTable(experiment(**AXES), cells), tmp_path, "f", "T") == []


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
