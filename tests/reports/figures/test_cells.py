"""Figures of cells: the numbers behind them.

Broken by a comparison that is left out or filled without being significant, a cost divided
by the wrong thing, a missing meter shown as 0, and a metric without its unit.
"""

import csv
from dataclasses import replace
from itertools import product

import pytest

from moe_lab.reports.figures import write_study_figures
from moe_lab.reports.figures.comparisons import draw_control, draw_effects
from moe_lab.reports.figures.cost import draw_overhead, draw_quality_cost
from moe_lab.reports.figures.curves import draw_epochs
from moe_lab.reports.figures.differences import differences_figure
from moe_lab.reports.figures.stored_studies import read_study
from moe_lab.reports.figures.studies import draw_sweep
from moe_lab.reports.figures.training import draw_designs
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.published import Published
from moe_lab.reports.papers.units import quantity
from moe_lab.reports.plotted import plotted
from moe_lab.reports.score_line import ScoreLine
from moe_lab.results.score import NO_SCORE
from moe_lab.results.statistics import over_seeds
from tests.support.runs import write_jsonl
from tests.support.stored_results import (
    cell_of,
    cell_table,
    expert_results,
    overhead_cell,
    results_of,
)
from tests.support.stored_studies import PROFILE, rows_of, write_study
from tests.support.trained_cells import bars, design_cells, experiment
from tests.support.views import family_of


def test_a_sweep_has_an_interval_where_the_metric_is_a_share_of_documents(tmp_path):
    values = [0.5, 0.52, 0.51]
    accuracy = {"metric": "accuracy", "direction": "maximize"}
    study = write_study(tmp_path / "s", values, tuning="uniform", temperature=PROFILE, **accuracy)
    paths = write_study_figures(study)
    assert [path.name for path in paths] == ["sweep.png", "sweep.csv"]
    rows = rows_of(paths[1])
    expected = [("0.0", "0.5"), ("0.05", "0.52"), ("0.1", "0.51")]
    assert [(row["temperature"], row["value"]) for row in rows] == expected
    # Wilson's interval of 50 of 100, from its formula by hand
    assert float(rows[0]["low"]) == pytest.approx(0.4038, abs=1e-4)
    assert float(rows[0]["high"]) == pytest.approx(0.5962, abs=1e-4)
    other_study = write_study(tmp_path / "p", [2.0, 1.9], tuning="uniform", temperature=PROFILE)
    _, table = draw_sweep([read_study(other_study)]).save(tmp_path, "p")
    assert [(row["low"], row["high"]) for row in rows_of(table)] == [("", "")] * 2


def test_expert_work_is_rows_times_experts():
    base = cell_of(method="base", model={"name": "tiny", "top_k": 8}, value=0.4)
    rows = draw_control(cell_table(cell_of(n=2), base, cell_of(n=4))).rows
    columns = ("method", "rows", "experts_per_token", "expert_work")
    expected = [("base", 1, 8, 8), ("roe", 2, 4, 8), ("roe", 4, 4, 16)]
    assert [tuple(row[name] for name in columns) for row in rows] == expected


KEYS = {
    "name": "own/e",
    "title": "T",
    "source": "S",
    "scales": {},
    "metric": "headline",
    "paper": [],
}


def test_every_comparison_is_a_row(tmp_path):
    table = Experiment(**KEYS, rows=["method", "model.recipe.routing_noise"], columns=["task"])
    coordinates = {"method": "roe", "model.recipe.routing_noise": "1", "task": "t"}
    cells = [TableCell(coordinates=coordinates, run_id="r", results=[results_of(paired=PAIRED)])]
    picture, numbers = draw_effects(CellTable(table, cells, family_of(table, cells))).save(
        tmp_path, "e", "T"
    )
    [row] = rows_of(numbers)
    assert row["label"] == "roe: minus base"
    assert [row[name] for name in ("difference", "low", "high", "p_holm")] == [
        "0.1",
        "0.05",
        "0.15",
        "0.001",
    ]
    assert picture.stat().st_size > 1000


def test_trainings_are_drawn_once_whatever_is_shown_of_their_runs(tmp_path):
    """Two trainings with two cells each. Only the first training has measurements.

    Broken by a panel per metric, and by another training's measurements.
    """
    metrics = {
        "load_balance": {"value": 3.0, "ci95": [2.9, 3.1]},
        "collaboration": {"value": 2.0, "ci95": None},
        "capacity": {"least": {"value": 0.1, "ci95": None}, "most": {"value": 0.3, "ci95": None}},
        "specialization": {"value": 0.4, "ci95": None},
    }
    measurements = [{"step": step, "epoch": step / 2, **metrics} for step in (0, 2)]
    write_jsonl(tmp_path / "models" / "measured" / "expert_metrics.jsonl", measurements)
    cells = []
    for name, measure in product(("measured", "unmeasured"), ("Load Balance", "Capacity")):
        training_result = expert_results(finetune_freeze={"model": name, "training": {}})
        training_result = training_result.model_copy(update={"folder": tmp_path / "runs" / name})
        coordinates = {"method.schedule": name, "measure": measure}
        cells.append(TableCell(coordinates=coordinates, run_id="r", results=[training_result]))

    png, table = draw_epochs(CellTable(bars(), cells)).save(tmp_path, "f", "T")

    assert png.stat().st_size > 1000
    assert table == tmp_path / "f.csv"
    rows = list(csv.DictReader(table.open()))
    expected = [("measured", "0.0", "2.9"), ("measured", "1.0", "2.9")]
    assert [(row["training"], row["epoch"], row["load_balance_low"]) for row in rows] == expected
    for row in rows:
        assert (row["capacity"], row["capacity_most"]) == ("0.1", "0.3"), "both readings"
    assert draw_epochs(CellTable(bars(), cells[2:])).save(tmp_path, "g", "T") == []


def test_overhead_is_relative_to_one_row():
    table = cell_table(
        overhead_cell(64, 8.0, temperature=0.2, tokens_out=200),
        overhead_cell(64, 3.0, peak_working_bytes=2 * 10**6),
        overhead_cell(1, 2.0),
        overhead_cell(8, 2.5, cache="none"),
        cell_of(cost=results_of()["moe_lab"]["cost"] | {"tokens_out": 0}),
        TableCell(coordinates={}, run_id=None, problem="no data"),
    )
    rows = draw_overhead(table).rows
    lines = [(row["cache"], row["temperature"], row["n"]) for row in rows]
    assert lines == [
        ("clean", "0", 1),
        ("clean", "0", 64),
        ("none", "0", 8),
        ("clean", "tuned", 64),
    ]
    assert [row["relative_seconds_per_token"] for row in rows] == [1.0, 1.5, 1.25, 2.0]
    assert rows[1]["relative_memory_bytes"] == 5 / 4, "weights and working memory, not the process"
    assert rows[1]["relative_tokens_per_second"] == pytest.approx(2 / 3)
    assert rows[0]["watts"] is None
    assert rows[0]["relative_watts"] is None


def test_on_a_gpu_memory_is_the_devices_peak_and_power_is_energy_over_time():
    gpu = {"device": "cuda:0", "energy_joules": 300.0}
    gpu_cells = gpu | {"energy_joules": 720.0}
    rows = draw_overhead(
        cell_table(overhead_cell(1, 1.0, **gpu), overhead_cell(8, 1.2, **gpu_cells))
    ).rows
    assert [row["watts"] for row in rows] == [300.0, pytest.approx(600.0)]
    assert rows[1]["relative_watts"] == pytest.approx(2.0)
    assert rows[0]["memory_bytes"] == 10**9
    [point] = draw_overhead(cell_table(overhead_cell(8, 1.0))).rows
    assert point["relative_seconds_per_token"] is None, "without one row"


TABLE = Experiment(**KEYS, rows=["model", "method", "method.n"], columns=["task"])
PAIRED = {"t": {"acc,none": {"difference": 0.1, "ci95": [0.05, 0.15], "p_mcnemar": 0.001}}}


def cell(method: str, tokens: list[int], task="t", n="-", value=0.5, **block) -> TableCell:
    """A cell with one run per number of tokens."""
    cost = results_of()["moe_lab"]["cost"]
    costs = [cost | {"tokens_in": count} for count in tokens]
    results = [
        results_of(method, value, cost=cost_of_point, run_id=f"{method}{task}{i}", **block)
        for i, cost_of_point in enumerate(costs)
    ]
    return TableCell(
        coordinates={"model": "tiny", "method": method, "method.n": n, "task": task},
        run_id="r",
        results=results,
    )


def table_of(*cells: TableCell) -> CellTable:
    return CellTable(TABLE, cells, family_of(TABLE, cells))


def test_work_is_tokens_times_experts_relative_to_the_same_tasks_base():
    roe = {"n": 2, "temperatures": [0.1], "cache": "clean"}
    dynamic = {"experts_per_token": 2.0}
    table = table_of(
        cell("base", [1000], task="other"),
        cell("base", [100]),
        cell("roe", [150, 250], n="2", roe=roe),
        cell("top-p", [100], n="1", top_p=dynamic),
        TableCell(
            coordinates={"model": "tiny", "method": "c3po", "method.n": "-", "task": "t"},
            run_id=None,
        ),
        cell("roe", [7], task="without base", n="8", roe=roe),
    )
    rows = {
        row["label"]: row["work"] for row in draw_quality_cost(table).rows if row["label"] != "base"
    }
    assert rows == {"roe n=2": 2.0, "top-p": 0.5}, "the model's own number of experts is 4"


def test_a_difference_is_the_paired_one_or_has_no_interval(tmp_path):
    table = table_of(
        cell("base", [100], value=0.4),
        cell("scmoe", [200], paired=PAIRED, scmoe={}),
        cell(
            "roe", [800], value=0.45, n="1", roe={"n": 1, "temperatures": [0.0], "cache": "clean"}
        ),
    )
    base, paired, unpaired = draw_quality_cost(table).rows
    assert (base["difference"], base["work"]) == (0.0, 1.0)
    expected = (0.1, 0.05, 0.15, True)
    assert (paired["difference"], paired["low"], paired["high"], paired["significant"]) == expected
    assert unpaired["difference"] == pytest.approx(0.05)
    assert unpaired["low"] is None
    assert not unpaired["significant"]
    picture, _ = draw_quality_cost(table).save(tmp_path, "e", "T")
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("expert.load_balance", "load balance, bits"),
        ("expert.capacity_most", "capacity most, accuracy lost"),
        ("training.validation_loss", "nats per token"),
        ("exact_match,strict-match", "exact_match"),
    ],
)
def test_metric_and_unit(metric, label):
    assert quantity(metric) == label


def row(label: str, difference: float, p: float | None, task: str = "t") -> ScoreLine:
    interval = (difference - 0.1, difference + 0.1)
    score = replace(NO_SCORE, task=task, metric="acc,none", difference=difference, p_holm=p, n=1200)
    return ScoreLine(replace(score, difference_interval=interval), label)


def test_rows_are_sorted_and_significant_ones_filled():
    figure = differences_figure([row("a", -0.2, 0.5), row("b", 0.3, 0.01), row("c", 0.1, None)])
    [axis] = figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == [
        "b, p = 0.01",
        "a, p = 0.5",
        "c",
    ]
    points = [line for line in axis.lines if line.get_marker() == "o"]
    assert [point.get_xdata()[0] for point in points] == [0.3, -0.2, 0.1]
    assert [point.get_markerfacecolor() == "white" for point in points] == [False, True, True]
    assert "filled: significant after Holm" in axis.get_xlabel()
    assert "1,200" in axis.get_title()


def tuned(method: str, study: str, settings: str) -> ScoreLine:
    line = row(settings, -0.1, 0.01)
    return ScoreLine(
        replace(line.score, method=method), settings, [results_of(method, tuning={"study": study})]
    )


def test_a_study_is_named_only_where_lines_would_look_alike_without_it():
    study = "tiny-noisy-toy_text-perplexity-a321d96a"
    other_study = "tiny-noisy-toy_text-perplexity-0f7b52c1"
    scale = "method.logit_scale="
    lines = [tuned("roe", study, "method.n=16"), tuned("calibration", study, f"{scale}{study}")]
    assert [line.label for line in plotted(lines)] == ["roe, n=16", "calibration"]
    lines.append(tuned("calibration", other_study, f"{scale}{other_study}"))
    labels = [line.label for line in plotted(lines)]
    assert labels == [
        "roe, n=16",
        f"calibration, logit_scale={study}",
        f"calibration, logit_scale={other_study}",
    ]


AXES = {"rows": ["method.label"], "columns": ["method.backbone", "task", "measure"]}
DESIGNS = [
    ("2/8", "olmoe"),
    ("2/8", "deepseek"),
    ("16/64", "olmoe"),
    ("16/64", "deepseek"),
    ("dense", "dense"),
]
"""Labels and backbones."""


def cells():
    """A cell per task and measure of each of five designs."""
    table_cells = []
    for label, backbone in DESIGNS:
        coordinates = {"method.backbone": backbone}
        table_cells += design_cells(label, [[2.0, 2.2]], coordinates=coordinates)
    return table_cells


def test_averages_and_losses_of_each_design_are_drawn(tmp_path):
    place = {
        "method.label": "2/8",
        "method.backbone": "olmoe",
        "task": "average",
        "measure": "accuracy",
    }
    paper = [Published(cell=place, value=35.0, unit="percent", place="T")]
    table = CellTable(experiment(**AXES, paper=paper), cells())
    rows = draw_designs(table).rows
    assert [row["panel"] for row in rows] == ["held-out loss"] * 5 + ["accuracy"] * 5
    assert [(row["design"], row["series"]) for row in rows] == DESIGNS + DESIGNS
    assert [row["published"] for row in rows if row["published"]] == [0.35]
    assert rows[0]["examples"] is None
    assert rows[5]["examples"] == 8
    png, _ = draw_designs(table).save(tmp_path, "f", "T")
    assert png.stat().st_size > 1000


def test_the_interval_at_a_loss_is_over_its_rows_or_over_seeds():
    loss_cells = design_cells("2/8", [[2.0, 3.0, 4.0]])
    loss_cells += design_cells("4/16", [[2.0, 2.2], [2.1, 2.3], [2.3, 2.5]])
    one_seed, several_seeds, *_ = draw_designs(CellTable(experiment(), loss_cells)).rows
    assert one_seed["low"] < one_seed["value"] == 3.0 < one_seed["high"]
    spread = over_seeds([2.1, 2.2, 2.4])
    assert (several_seeds["low"], several_seeds["high"]) == pytest.approx(spread.interval)


def test_one_task_is_drawn_as_it_is():
    cells_of_a = [cell for cell in cells() if cell.coordinates["task"] != "b"]
    rows = draw_designs(CellTable(experiment(**AXES), cells_of_a)).rows
    assert {row["panel"] for row in rows} == {"held-out loss", "accuracy"}
    assert len(rows) == 10
