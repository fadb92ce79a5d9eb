"""MoE-Bench's published numbers in `experiments/moe_bench`, their marks,
and the cells next to them.

Broken by a number in another one's place, an average that is not that of its row, a doubtful number
without a mark, a published number without a cell next to it, a design that two settings share,
a standard error that is not that of independent tasks.
"""

import math
from dataclasses import asdict
from functools import cache
from typing import Any

import pytest
import yaml

from moe_lab.config.compose import Cell
from moe_lab.config.schema import Config, ModelConfig
from moe_lab.methods.pretrain.method import Pretrain
from moe_lab.reports.papers.experiment import MEASURE, Experiment, find_experiments
from moe_lab.results.means import task_mean
from moe_lab.results.score import Score
from moe_lab.runs.experiments.cells import PreparedCell
from moe_lab.runs.experiments.table_cells import filled

FINE_TUNING_SIZES = {
    "arc_challenge": 1172,
    "arc_easy": 2376,
    "mmlu": 14042,
    "piqa": 1838,
    "winogrande": 1267,
}
"""The tasks of fine-tuning, with the questions in their test sets."""
SIZES = FINE_TUNING_SIZES | {"hellaswag": 10042}

LOAD = "Load Balance"
LEAST = "Capacity least (section 4.1)"
MOST = "Capacity most (Table 6)"
SPECIALIZATION = "Specialization"
COLLABORATION = "Collaboration"

Lines = dict[tuple[str, ...], dict[str, float]]
"""{the line's value of each axis: {its column: number}}"""


@cache
def parsed(text: str) -> Any:
    """A value of an override. Many cells have the same ones."""
    return yaml.safe_load(text)


def load(name: str) -> Experiment:
    [experiment] = find_experiments(f"moe_bench/{name}")
    return experiment


def lines_of(name: str, axes: list[str], column_keys: list[str]) -> Lines:
    """A paper's table by line. A column is named by its values of `column_keys`."""
    lines: Lines = {}
    for number in load(name).paper:
        axis_values = tuple(number.cell[axis] for axis in axes)
        column = ", ".join(number.cell[key] for key in column_keys if key in number.cell)
        line = lines.setdefault(axis_values, {})
        line[column] = number.value
    return lines


def table3() -> Lines:
    return lines_of("table3", ["method.label", "method.router"], ["task"])


def table6() -> Lines:
    return lines_of("table6", ["method.regularizers", "method.label"], ["measure"])


def fine_tuning(table: int) -> Lines:
    return lines_of(f"table{table}", ["method.schedule", "method.router_lr"], ["task", "measure"])


def mean_of(line: dict[str, float], sizes: dict[str, int]) -> Score:
    """The average of a line as tables compute it, with independent tasks' standard error."""
    scores = []
    for task, size in sizes.items():
        share = line[task] / 100
        scores.append(
            Score(
                task=task,
                value=share,
                stderr=math.sqrt(share * (1 - share) / (size - 1)),
                model="m",
                method="f",
                metric="acc,none",
                run_id="r",
            )
        )
    mean = task_mean(scores)
    assert mean is not None
    return mean


def marked(name: str, axes: list[str]) -> set[tuple[str, ...]]:
    """The places of a paper's numbers that have a mark."""
    places = set()
    for number in load(name).paper:
        if number.mark:
            places.add(tuple(number.cell[axis] for axis in axes))
    return places


def cells_of(experiment: Experiment, scale: str) -> list[PreparedCell]:
    """The cells of a scale as Hydra composes them, which takes a second for three of them."""
    return [prepared(overrides) for overrides in experiment.scale(scale).overrides()]


def prepared(overrides: list[str]) -> PreparedCell:
    values = {}
    method_keys = {}
    for override in overrides:
        key, _, text = override.partition("=")
        values[key] = parsed(text)
        if key.startswith("method."):
            method_keys[key.removeprefix("method.")] = parsed(text)
    config = Config(
        model=ModelConfig(name=values["model"]),
        method=Pretrain.Config(**method_keys),
        metrics=values.get("metrics", "none"),
    )
    choices = {group: values[group] for group in ("model", "method", "task")}
    cell = Cell({"method": asdict(config.method)}, choices, [], overrides)
    return PreparedCell(cell, config, None)


# Pre-training


def test_table_3_has_all_numbers_and_averages_are_those_of_their_row():
    lines = table3()
    expected = set()
    for label in ("1/7+1", "2/8", "15/63+1", "16/64"):
        for router in ("token", "expert", "word", "sentence"):
            expected.add((label, router))
    assert set(lines) == expected
    for line in lines.values():
        assert set(line) == {*SIZES, "average"}
        mean = sum(line[task] for task in SIZES) / len(SIZES)
        assert line["average"] == pytest.approx(mean, abs=0.0051), "also where PIQA is 0.58"


def test_accuracies_are_shares_of_the_test_sets_but_one_which_is_marked():
    impossible = []
    for row, line in table3().items():
        for task, size in SIZES.items():
            right = round(line[task] / 100 * size)
            if abs(100 * right / size - line[task]) > 0.0101:
                impossible.append((*row, task))
    assert impossible == [("2/8", "sentence", "piqa")]

    doubtful = marked("table3", ["method.label", "method.router", "task"])
    assert ("2/8", "sentence", "piqa") in doubtful
    assert ("2/8", "sentence", "average") in doubtful


def test_accuracies_at_chance_are_marked():
    doubtful = marked("table3", ["method.label", "method.router", "task"])
    for row, line in table3().items():
        assert 25 < line["mmlu"] < 27.4, "chance is 25"
        assert 15 < line["arc_challenge"] < 20, "chance is 25"
        assert (*row, "mmlu") in doubtful
        assert (*row, "arc_challenge") in doubtful


def test_the_marked_word_row_repeats_2_8_rows_in_all_six_scores():
    lines = table3()
    for task in SIZES:
        [number] = [
            number
            for number in load("table3").paper
            if number.cell.items()
            >= {"method.label": "15/63+1", "method.router": "word", "task": task}.items()
        ]
        equal_rows = []
        for (label, router), line in lines.items():
            if label in ("2/8", "1/7+1") and line[task] == number.value:
                equal_rows.append(f"{label} {router}")
        assert equal_rows, task
        assert number.mark is not None, task
        assert f"the number of {equal_rows[0]}" in number.mark, task


def test_table_6_has_23_rows_with_both_readings_of_capacity():
    lines = table6()
    assert len(lines) == 23
    assert ("auxiliary loss", "8/32") not in lines
    for (_, label), line in lines.items():
        _, experts = routing_of(label)
        assert len(line) == 5
        assert line[MOST] == line[LEAST]
        assert line[COLLABORATION] < math.log2(experts - 1)


def test_table_6_marks_what_cannot_be_a_target():
    """More than the entropy of equal loads; one expert without pairs; experts without effect."""
    impossible = set()
    for (setting, label), line in table6().items():
        for measure in impossible_measures(label, line):
            impossible.add((setting, label, measure))
    assert impossible == marked("table6", ["method.regularizers", "method.label", "measure"])
    assert len(impossible) == 10


def routing_of(label: str) -> tuple[int, int]:
    """2 and 8 of "2/8", and 1 and 7 of "1/7+1": the experts of a token, and all of them."""
    top_k, experts = label.partition("+")[0].split("/")
    return int(top_k), int(experts)


def impossible_measures(label: str, line: dict[str, float]) -> list[str]:
    top_k, experts = routing_of(label)
    measures = []
    if line[LOAD] > math.log2(experts):
        measures += [LOAD, COLLABORATION]
    if top_k == 1 and line[COLLABORATION] == 0:
        measures.append(COLLABORATION)
    if line[SPECIALIZATION] < 0.01:
        measures += [SPECIALIZATION, LEAST, MOST]
    return measures


@pytest.mark.parametrize("scale", ["tiny", "paper"])
@pytest.mark.parametrize(
    ("name", "designs"), [("table3", 20), ("table6", 23), ("figure2", 13), ("figure3", 16)]
)
def test_each_design_has_a_place_of_its_own(name, designs, scale):
    experiment = load(name)
    cells = cells_of(experiment, scale)
    assert len({repr(cell.config.method) for cell in cells}) == designs
    if name == "table3":
        routers = {cell.config.method.router for cell in cells}
        assert routers >= {"word", "word-hash"}

    filled_experiment, table_cells = filled(experiment, scale, cells, {}, [])
    assert filled_experiment is experiment, "no two designs in one place"
    losses = [cell for cell in table_cells if cell.of_training and "loss" in cell.metric]
    assert len(losses) == designs, "once for all tasks"


@pytest.mark.parametrize("name", ["table3", "table6", "figure2", "figure3"])
def test_every_number_of_the_paper_has_a_cell(name):
    experiment = load(name)
    _, table_cells = filled(experiment, "paper", cells_of(experiment, "paper"), {}, [])
    places = []
    for cell in table_cells:
        places.append(cell.coordinates)
        if "task" in cell.coordinates:
            places.append(cell.coordinates | {"task": "average"})
    for number in experiment.paper:
        assert any(number.cell.items() <= place.items() for place in places), number


def test_the_designs_of_a_table_have_equal_active_size_and_the_tables_share_their_models():
    recipes = {}
    for name in ("table3", "table6", "figure2", "figure3"):
        methods = [cell.config.method for cell in cells_of(load(name), "tiny")]
        assert {method.active_size for method in methods} == {128}
        recipes[name] = {repr(sorted(method.recipe().items())) for method in methods}
    of_figure_2_alone = recipes["figure2"] - recipes["table3"] - recipes["table6"]
    of_figure_3_alone = recipes["figure3"] - recipes["table6"]
    assert len(recipes["table3"] | recipes["table6"]) == 20 + 23 - 4
    assert len(of_figure_2_alone) == 7, "DeepSeek and dense"
    assert len(of_figure_3_alone) == 4, "those with a bias"


@pytest.mark.parametrize(
    "name",
    ["table3", "table6", "figure2", "figure3", "table4", "table7", "table9", "figure1"],
)
def test_tiny_trainings_have_five_seeds(name):
    """One seed cannot rank trainings of this size."""
    cells = load(name).scale("tiny").overrides()
    trainings = [overrides for overrides in cells if "method=base" not in overrides]
    assert trainings
    for overrides in trainings:
        assert "seeds=5" in overrides


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_figure_2_trains_deepseek_alone_with_its_device_loss(scale):
    """Not so OLMoE's rows, which Table 3 has, too."""
    methods = [cell.config.method for cell in cells_of(load("figure2"), scale)]
    assert "deepseek" in {method.backbone for method in methods}
    assert {method.backbone for method in methods} != {"deepseek"}
    for method in methods:
        if method.backbone == "deepseek":
            assert method.device_loss == 0.05
            assert method.experts % method.devices == 0
        else:
            assert method.device_loss == 0.0


def test_measures_are_those_of_the_paper():
    metrics = load("table6").metrics("paper")
    assert set(metrics) > {LOAD, LEAST, SPECIALIZATION, COLLABORATION}
    assert metrics[MOST] == "expert.capacity_most"
    for name in ("table3", "table6", "figure2"):
        assert load(name).metrics("paper")["held-out loss"] == "training.validation_loss"
        assert MEASURE in load(name).columns


# Fine-tuning


@pytest.mark.parametrize(
    ("table", "rows", "columns"),
    [
        (4, 12, 6),
        (5, 13, 6),
        (7, 12, 5),
        (8, 13, 5),
        (9, 12, 9),
        (10, 13, 9),
        (11, 12, 3),
        (12, 13, 3),
    ],
)
def test_all_numbers_of_a_table_are_there(table, rows, columns):
    lines = fine_tuning(table)
    assert len(lines) == rows
    for line in lines.values():
        assert len(line) == columns


@pytest.mark.parametrize("table", [7, 8])
def test_the_papers_capacity_stands_beside_both_readings(table):
    metrics = load(f"table{table}").metrics("paper")
    assert metrics[LEAST] == "expert.capacity"
    assert metrics[MOST] == "expert.capacity_most"
    for line in fine_tuning(table).values():
        assert line[LEAST] == line[MOST] < 0.06
        assert line[LOAD] > 5 > line[COLLABORATION] > 4 > line[SPECIALIZATION] > 0.29


@pytest.mark.parametrize("table", [4, 5])
def test_averages_are_those_of_their_line(table):
    for line in fine_tuning(table).values():
        mean = sum(line[task] for task in FINE_TUNING_SIZES) / len(FINE_TUNING_SIZES)
        assert line["average"] == pytest.approx(mean, abs=0.0101), "rounded, or cut off"


def test_olmoes_accuracies_are_shares_of_the_test_sets():
    """To two decimals of a per cent; a wrong task's number would not be one of so few questions."""
    for line in fine_tuning(4).values():
        for task, size in FINE_TUNING_SIZES.items():
            right = round(line[task] / 100 * size)
            assert line[task] == pytest.approx(100 * right / size, abs=0.0101), task


@pytest.mark.parametrize("table", [4, 7, 9, 11])
def test_rows_that_repeat_others_are_marked(table):
    lines = fine_tuning(table)
    assert lines["none", "1e-05"] == lines["experts", "-"]
    assert lines["none", "5e-06"] == lines["router", "-"]
    assert lines["none", "2e-06"] == lines["experts-router", "-"]

    marked_rates = set()
    for number in load(f"table{table}").paper:
        if number.mark is not None and "the same numbers as" in number.mark:
            marked_rates.add(number.cell["method.router_lr"])
    assert marked_rates == {"1e-05", "5e-06", "2e-06"}


def test_the_sweet_point_is_within_one_standard_error_of_full_fine_tuning():
    """+0.19 points between averages whose standard error is 0.47, as tables here compute it."""
    lines = fine_tuning(4)
    frozen_router = lines["none-router", "-"]
    gain = frozen_router["average"] - lines["none", "-"]["average"]
    stderr = mean_of(frozen_router, FINE_TUNING_SIZES).stderr
    assert gain == pytest.approx(0.19)
    assert stderr == pytest.approx(0.0047, abs=0.0001)
    assert gain / 100 < stderr


def test_the_standard_error_of_an_average_of_table_3():
    mean = mean_of(table3()["2/8", "token"], SIZES)
    assert mean.stderr == pytest.approx(0.0040, abs=0.00005)
