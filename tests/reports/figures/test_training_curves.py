"""Broken by a training drawn once for each measure, by one setting's lines in another one's panel, by a lost seed."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import product

from moe_lab.reports.figures.training import curve_rows, write_training_curves
from moe_lab.reports.papers.cells import CellTable
from tests.support.pretrained_cells import design_cells, experiment, trained_results

AXES = {"rows": ["method.label"], "columns": ["method.regularizers", "method.shared_experts", "measure"]}
LOG = [{"loss": 4.0, "step": 20}, {"validation_loss": 9.0, "step": 20}, {"loss": 3.0, "step": 40}]


def cells_of(label: str, setting: str, shared: str, folder):
    cells = design_cells(
        label,
        [[2.0, 2.0]],
        coordinates={"method.regularizers": setting, "method.shared_experts": shared},
    )
    for cell in cells:
        results = (
            trained_results([2.0, 2.0], seed=seed, run_id=f"r{seed}", pretrain=training(seed))
            for seed in (0, 1)
        )
        cell.results[:] = [replace(result, folder=folder / "runs" / "r") for result in results]
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
    for cell in second:
        for seed, results in enumerate(cell.results):
            results["moe_lab"]["pretrain"] = training(seed) | {"model": f"n{seed}"}
    rows = curve_rows(CellTable(experiment(**AXES), [*first, *second]))
    assert [(row["line"], row["seed"], row["difference"]) for row in rows] == [
        ("2/8", 0, 0.0), ("2/8", 1, 0.0), ("4/16", 0, 0.5), ("4/16", 1, 1.5)]  # fmt: skip


def test_runs_without_a_log_draw_nothing(tmp_path):
    cells = cells_of("2/8", "z-loss", "0", tmp_path)
    assert write_training_curves(CellTable(experiment(**AXES), cells), tmp_path, "f", "T") == []
