"""Figures of trainings.

Broken by a training drawn once for each measure, one setting's lines in another one's panel,
a lost seed, and a phase line at another step.

Figures of studies. Broken by a study that is drawn twice, a skipped layer shown as 0, a pruned
trial that counts as a value, and the default learning rate of the routers at zero.
"""

import csv
from itertools import product

import pytest

from moe_lab.reports.figures import drawing, write_study_figures
from moe_lab.reports.figures.comparisons import draw_accuracy, draw_control, draw_forest
from moe_lab.reports.figures.cost import draw_overhead
from moe_lab.reports.figures.curves import draw_flops, draw_lines
from moe_lab.reports.figures.schedules import draw_schedules, schedule_label
from moe_lab.reports.figures.stored_studies import read_study, studies_of
from moe_lab.reports.figures.training import draw_designs, draw_training_curves
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from tests.support.runs import write_jsonl
from tests.support.stored_results import cell_table
from tests.support.stored_studies import PROFILE, pixels, rows_of, write_study
from tests.support.trained_cells import (
    KEYS,
    bars,
    cell,
    cells,
    design_cells,
    experiment,
    trained_results,
)


def test_each_column_is_a_panel_with_the_average_last(tmp_path):
    rows = draw_schedules(CellTable(bars(), cells())).rows
    assert [row["panel"] for row in rows] == ["arc", "piqa"] * 3 + ["average"] * 3
    values = {(row["panel"], row["schedule"]): row for row in rows}
    assert values["piqa", "N→R"]["value"] == pytest.approx(0.7)
    assert values["average", "E→E"]["value"] == pytest.approx(0.8)
    assert values["average", "N→R"]["published"] == 0.65
    assert values["arc", "N→R"]["published"] is None
    png, _ = draw_schedules(CellTable(bars(), cells())).save(tmp_path, "f", "T")
    assert png.stat().st_size > 1000


def test_a_forest_has_a_point_for_each_setting_with_the_average_last(tmp_path):
    png, table = draw_forest(CellTable(bars(), cells())).save(tmp_path, "f", "T")
    rows = list(csv.DictReader(table.open()))
    points = {(row["panel"], row["setting"]): (row["method"], float(row["value"])) for row in rows}
    assert list(dict.fromkeys(panel for panel, _ in points)) == ["arc", "piqa", "average"]
    assert points["arc", "base"] == ("finetune-freeze", pytest.approx(0.1)), "the method of the run"
    assert points["average", "finetune-freeze, experts"][1] == pytest.approx(0.8)
    assert len(points) == 9
    assert png.stat().st_size > 1000


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
    missing = TableCell(
        coordinates={"task": "a", "method.schedule": "none", "method": "x"}, run_id=None
    )
    lines = Experiment(
        **KEYS, rows=["method.schedule"], columns=["task"], metric="headline", paper=[]
    )
    without_log = CellTable(experiment(**AXES), cells_of("2/8", "z-loss", tmp_path))
    for draw, table in (
        (draw_schedules, CellTable(bars(average=None), [missing])),
        (draw_lines, CellTable(lines, [missing])),
        (draw_training_curves, without_log),
        (draw_designs, CellTable(experiment(), [])),
        *(
            (draw, cell_table(missing))
            for draw in (draw_accuracy, draw_control, draw_overhead, draw_flops)
        ),
    ):
        assert draw(table).save(tmp_path / "out", "f", "T") == []
    assert list(tmp_path.iterdir()) == []


AXES = {
    "rows": ["method.label"],
    "columns": ["method.regularizers", "method.shared_experts", "measure"],
}


@pytest.mark.slow
def test_a_panel_has_a_line_for_each_granularity(tmp_path):
    for seed in (0, 1):
        lines = [
            {"loss": 4.0 + seed, "step": 20},
            {"validation_loss": 9.0, "step": 20},
            {"loss": 3.0 + seed, "step": 40},
        ]
        write_jsonl(tmp_path / "models" / f"m{seed}" / "log.jsonl", lines)
    cells = [*cells_of("2/8", "z-loss", tmp_path), *cells_of("16/64", "z-loss", tmp_path)]
    cells += cells_of("1/7+1", "z-loss", tmp_path, shared="1")
    png, files = draw_training_curves(CellTable(experiment(**AXES), cells)).save(tmp_path, "f", "T")
    rows = list(csv.DictReader(files.open()))
    assert [
        (row["panel"], row["line"], row["seed"], row["step"], row["loss"]) for row in rows[:4]
    ] == [
        ("z-loss, shared experts: 0", "2/8", *numbers)
        for numbers in (
            ("0", "20", "4.0"),
            ("0", "40", "3.0"),
            ("1", "20", "5.0"),
            ("1", "40", "4.0"),
        )
    ]
    assert {row["difference"] for row in rows} == {"0.0"}
    assert len(rows) == 3 * 2 * 2
    assert rows[-1]["panel"] == "z-loss, shared experts: 1"
    assert png.stat().st_size > 1000


def test_differences_are_to_the_first_line_of_the_same_seed(tmp_path):
    for seed, name in product((0, 1), ("m", "n")):
        line = {"loss": 3.0 + seed + (0.5 + seed) * (name == "n"), "step": 20}
        write_jsonl(tmp_path / "models" / f"{name}{seed}" / "log.jsonl", [line])
    cells = [*cells_of("2/8", "z-loss", tmp_path), *cells_of("4/16", "z-loss", tmp_path, model="n")]
    rows = draw_training_curves(CellTable(experiment(**AXES), cells)).rows
    assert [(row["line"], row["seed"], row["difference"]) for row in rows] == [
        ("2/8", 0, 0.0),
        ("2/8", 1, 0.0),
        ("4/16", 0, 0.5),
        ("4/16", 1, 1.5),
    ]


def cells_of(label, setting, folder, *, shared="0", model="m"):
    """A design trained with seeds 0 and 1, as the models m0 and m1."""
    place = {"method.regularizers": setting, "method.shared_experts": shared}
    cells = design_cells(label, [[2.0, 2.0]], coordinates=place)
    for table_cell in cells:
        table_cell.results.clear()
        for seed in (0, 1):
            validation = {"loss": 2.0, "ci95": None}
            pretrain = {"model": f"{model}{seed}", "training": {"validation": validation}}
            result = trained_results([2.0, 2.0], seed=seed, run_id=f"r{seed}", pretrain=pretrain)
            table_cell.results.append(result.model_copy(update={"folder": folder / "runs" / "r"}))
    return cells


def test_tpe_leaves_history_and_heatmap(tmp_path):
    study = write_study(tmp_path / "s", [2.0, 2.5, None, 1.5, 1.75], temperature=PROFILE)
    paths = write_study_figures(study)
    names = ["history.png", "history.csv", "heatmap.png", "heatmap.csv"]
    assert paths == [study / "figures" / name for name in names]
    assert pixels(paths[0])[0] >= drawing.DPI * 4
    assert pixels(paths[2])[0] >= drawing.DPI * 5.5
    files = {path.name for path in (study / "figures").iterdir()}
    assert files == {*names}, "nothing temporary stays"


def test_a_study_without_a_complete_trial_has_no_figures_and_one_without_a_profile_no_heatmap(
    tmp_path,
):
    begun = write_study(tmp_path / "s", [])
    assert write_study_figures(begun) == []
    done = write_study(tmp_path / "t", [2.0])
    assert [path.name for path in write_study_figures(done)] == ["history.png", "history.csv"]
    cells = [
        TableCell(coordinates={}, run_id="r", studies=cell_studies)
        for cell_studies in ([done], [done], [begun], [])
    ]
    [study_found] = studies_of(cells)  # each is drawn once
    assert study_found.info == read_study(done).info
    assert len(study_found.complete) == 1


def test_the_heatmap_tells_skipped_layers_from_those_tuned_to_zero(tmp_path):
    tuned = [0.0, 0.0, *PROFILE[2:]]
    rows = rows_of(
        write_study_figures(write_study(tmp_path / "s", [2.0, 1.0], temperature=tuned))[3]
    )
    assert [float(row["temperature"]) for row in rows] == tuned
    assert [row["layer"] for row in rows if row["skipped"] == "True"] == ["0", "7"]


def test_the_history_has_every_ended_trial_and_the_best_so_far(tmp_path):
    study = write_study(tmp_path / "s", [2.0, 2.5, None, 1.5, 1.75], temperature=PROFILE)
    rows = rows_of(write_study_figures(study)[1])
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["state"] for row in rows] == ["COMPLETE"] * 2 + ["PRUNED"] + ["COMPLETE"] * 2
    assert [row["value"] for row in rows] == ["2.0", "2.5", "", "1.5", "1.75"]
    assert rows[2]["estimate"] == "9.9"
    assert [row["best"] for row in rows] == ["2.0", "2.0", "2.0", "1.5", "1.5"]
    assert {row["untuned"] for row in rows} == {"2.0"}
    maximized = {"metric": "accuracy", "direction": "maximize"}
    study = write_study(tmp_path / "a", [0.5, 0.7, 0.7, 0.6], temperature=PROFILE, **maximized)
    rows = rows_of(write_study_figures(study)[1])
    assert [row["best"] for row in rows] == ["0.5", "0.7", "0.7", "0.7"]
    assert read_study(study).best["trial"] == 1, "of equal ones the first"


def test_lines_over_a_rate_have_the_default_rate_at_its_value_in_rising_order(tmp_path):
    """The default rate of routers, a dash, is that of all other parameters: 0.02."""
    measures = {"Load Balance": "expert.load_balance", "accuracy": "headline"}
    axes = {"rows": ["method.router_lr"], "columns": ["model", "measure"]}
    lines = Experiment(**KEYS, **axes, metric=measures, paper=[])
    points = []
    for rate, value in (("-", 0.6), ("1e-05", 0.4)):
        for name, metric in measures.items():
            points.append(cell(value, metric, model="tiny", measure=name, method__router_lr=rate))
    rows = draw_lines(CellTable(lines, points)).rows
    assert [(row["x"], row["measure"]) for row in rows] == [*product((1e-05, 0.02), measures)]
    assert [row["value"] for row in rows] == [3.5, 0.4, 3.5, 0.6]
    assert {row["line"] for row in rows} == {"tiny"}
    assert draw_lines(CellTable(lines, points)).save(tmp_path, "f", "T")[0].stat().st_size > 1000
