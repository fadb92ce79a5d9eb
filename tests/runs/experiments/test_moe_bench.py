"""MoE-Bench's published numbers in `experiments/moe_bench`, their marks, and the cells next to them.

Broken by a number in another one's place, an average that is not that of its row, a doubtful number without a mark, a
published number that no cell stands beside, a design that two settings share, a standard error that is not that of
independent tasks.
"""

import math
from dataclasses import asdict
from functools import cache, partial

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

SIZES = {"arc_challenge": 1172, "arc_easy": 2376, "mmlu": 14042, "piqa": 1838, "winogrande": 1267}
SIZES |= {"hellaswag": 10042}
FIVE = {task: size for task, size in SIZES.items() if task != "hellaswag"}
"""The tasks of fine-tuning."""
COLUMNS = [*SIZES, "average"]
parsed = cache(yaml.safe_load)  # many cells have the same values
FOUR = ("Load Balance", "Capacity least (section 4.1)", "Specialization", "Collaboration")


def load(name: str) -> Experiment:
    [found] = find_experiments(f"moe_bench/{name}")
    return found


def lines_of(
    name: str, *axes: str, columns: tuple[str, ...] = ("task", "measure")
) -> dict[tuple[str, ...], dict[str, float]]:
    """{the line's value of each axis: {its values of the columns: number}}"""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for each in load(name).paper:
        column = ", ".join(each.cell[key] for key in columns if key in each.cell)
        found.setdefault(tuple(each.cell[axis] for axis in axes), {})[column] = each.value
    return found


table3 = partial(lines_of, "table3", "method.label", "method.router", columns=("task",))
table6 = partial(lines_of, "table6", "method.regularizers", "method.label", columns=("measure",))


def fine_tuning(number: int) -> dict[tuple[str, ...], dict[str, float]]:
    return lines_of(f"table{number}", "method.schedule", "method.router_lr")


def mean_of(line: dict[str, float], sizes: dict[str, int]) -> Score:
    """The average of a line as tables here compute it, with the standard error of independent tasks."""
    shares = {task: line[task] / 100 for task in sizes}
    errors = {
        task: math.sqrt(share * (1 - share) / (sizes[task] - 1)) for task, share in shares.items()
    }
    own = {"model": "m", "method": "f", "metric": "acc,none", "run_id": "r"}
    mean = task_mean(
        [Score(task=task, value=shares[task], stderr=errors[task], **own) for task in sizes]
    )
    assert mean is not None
    return mean


def marked(name: str, *axes: str) -> set[tuple[str, ...]]:
    return {tuple(each.cell[axis] for axis in axes) for each in load(name).paper if each.mark}


def cells_of(name: str, scale: str) -> tuple[Experiment, list[PreparedCell]]:
    """The cells of a scale as Hydra composes them, which takes a second for three of them."""
    found = load(name)
    return found, [prepared(overrides) for overrides in found.scale(scale).overrides()]


def prepared(overrides: list[str]) -> PreparedCell:
    keys = {key: parsed(value) for key, _, value in (text.partition("=") for text in overrides)}
    own = {
        key.removeprefix("method."): value
        for key, value in keys.items()
        if key.startswith("method.")
    }
    model = ModelConfig(name=keys["model"])
    config = Config(model=model, method=Pretrain.Config(**own), metrics=keys.get("metrics", "none"))
    choices = {group: keys[group] for group in ("model", "method", "task")}
    values = {"method": asdict(config.method)}
    return PreparedCell(Cell(values, choices, [], overrides), config, None)


def test_table_3_has_all_numbers_and_averages_are_those_of_their_row():
    found = table3()
    labels, routers = ("1/7+1", "2/8", "15/63+1", "16/64"), ("token", "expert", "word", "sentence")
    assert set(found) == {(label, router) for label in labels for router in routers}
    for line in found.values():
        assert set(line) == set(COLUMNS)
        mean = sum(line[task] for task in SIZES) / len(SIZES)
        assert line["average"] == pytest.approx(mean, abs=0.0051), "also where PIQA is 0.58"


def test_accuracies_are_shares_of_the_test_sets_but_one_and_those_at_chance_are_marked():
    odd = [
        (row, task)
        for row, line in table3().items()
        for task, size in SIZES.items()
        if abs(100 * round(line[task] / 100 * size) / size - line[task]) > 0.0101
    ]
    assert odd == [(("2/8", "sentence"), "piqa")]
    doubtful = marked("table3", "method.label", "method.router", "task")
    assert {("2/8", "sentence", "piqa"), ("2/8", "sentence", "average")} <= doubtful
    for row, line in table3().items():
        assert 25 < line["mmlu"] < 27.4 and 15 < line["arc_challenge"] < 20, "chance is 25"
        assert {(*row, "mmlu"), (*row, "arc_challenge")} <= doubtful


def test_the_marked_word_row_repeats_2_8_rows_in_all_six_scores():
    lines_of_2_of_8 = {}
    for (label, router), line in table3().items():
        if label in ("2/8", "1/7+1"):
            lines_of_2_of_8[f"{label} {router}"] = line

    marked_tasks = []
    for published in load("table3").paper:
        row = published.cell["method.label"], published.cell["method.router"]
        task = published.cell["task"]
        if row != ("15/63+1", "word") or task == "average":
            continue
        equal = [name for name, line in lines_of_2_of_8.items() if line[task] == published.value]
        assert f"the number of {equal[0]}" in published.mark, task
        marked_tasks.append(task)
    assert sorted(marked_tasks) == sorted(SIZES)


def test_table_6_has_23_rows_with_both_readings_and_marks_what_cannot_be_a_target():
    """More than the entropy of equal loads; one expert, which has no pairs; experts that do not matter."""
    found = table6()
    assert len(found) == 23 and ("auxiliary loss", "8/32") not in found
    wrong = set()
    for (setting, label), line in found.items():
        assert (
            len(line) == 5
            and line["Capacity most (Table 6)"] == line["Capacity least (section 4.1)"]
        )
        k, experts = map(int, label.partition("+")[0].split("/"))
        unequal, alone = (
            line["Load Balance"] > math.log2(experts),
            k == 1 and line["Collaboration"] == 0,
        )
        names = ["Load Balance"] * unequal + ["Collaboration"] * (unequal or alone)
        if line["Specialization"] < 0.01:
            names += [measure for measure in line if measure[:3] in ("Cap", "Spe")]
        wrong |= {(setting, label, name) for name in names}
        assert line["Collaboration"] < math.log2(experts - 1)
    assert (
        wrong == marked("table6", "method.regularizers", "method.label", "measure")
        and len(wrong) == 10
    )


@pytest.mark.parametrize(
    "name, designs", [("table3", 20), ("table6", 23), ("figure2", 13), ("figure3", 16)]
)
def test_each_design_has_a_place_of_its_own_and_every_number_a_cell(name, designs):
    for scale in ("tiny", "paper"):
        found, cells = cells_of(name, scale)
        one = {repr(each.config.method): each for each in cells}
        assert len(one) == designs, scale
        experiment, shown = filled(found, scale, cells, {}, [])
        assert experiment is found, "no two designs in one place"
        losses = [cell for cell in shown if cell.of_training and "loss" in cell.metric]
        assert len(losses) == designs, "once for all tasks"
        assert name != "table3" or {each.config.method.router for each in cells} >= {
            "word",
            "word-hash",
        }
    means = [cell.coordinates | {"task": "average"} for cell in shown if "task" in cell.coordinates]
    for number in found.paper:
        assert any(
            number.cell.items() <= place.items()
            for place in [*(cell.coordinates for cell in shown), *means]
        ), number


def test_the_designs_of_a_table_have_equal_active_size_and_the_tables_share_their_models():
    recipes = {}
    for name in ("table3", "table6", "figure2", "figure3"):
        _, cells = cells_of(name, "tiny")
        recipes[name] = {repr(sorted(each.config.method.recipe().items())) for each in cells}
        assert {each.config.method.active_size for each in cells} == {128}
    assert len(recipes["table3"] | recipes["table6"]) == 20 + 23 - 4
    assert len(recipes["figure2"] - recipes["table3"] - recipes["table6"]) == 7, (
        "DeepSeek and dense"
    )
    assert len(recipes["figure3"] - recipes["table6"]) == 4, "those with a bias"


@pytest.mark.parametrize(
    "name", "table3 table6 figure2 figure3 table4 table7 table9 figure1".split()
)
def test_tiny_trainings_have_five_seeds(name):
    """One seed cannot rank trainings of this size."""
    trainings = [cell for cell in load(name).scale("tiny").overrides() if "method=base" not in cell]
    assert trainings and all("seeds=5" in cell for cell in trainings)


def test_figure_2_trains_deepseek_with_its_device_loss():
    """And OLMoE's rows, which Table 3 has, without."""
    for scale in ("tiny", "small", "paper"):
        _, cells = cells_of("figure2", scale)
        methods = [each.config.method for each in cells]
        assert {one.device_loss for one in methods if one.backbone == "deepseek"} == {0.05}
        assert {one.device_loss for one in methods if one.backbone != "deepseek"} == {0.0}
        assert all(one.experts % one.devices == 0 for one in methods if one.device_loss)


def test_measures_are_those_of_the_paper():
    metrics = load("table6").metrics("paper")
    assert set(FOUR) < set(metrics) and metrics["Capacity most (Table 6)"] == "expert.capacity_most"
    for name in ("table3", "table6", "figure2"):
        assert load(name).metrics("paper")["held-out loss"] == "training.validation_loss"
        assert MEASURE in load(name).columns


# Fine-tuning

REPEATS = {"1e-05": "experts", "5e-06": "router", "2e-06": "experts-router"}


@pytest.mark.parametrize(
    ("number", "rows", "columns"),
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
def test_all_numbers_of_a_table_are_there(number, rows, columns):
    found = fine_tuning(number)
    assert len(found) == rows and {len(line) for line in found.values()} == {columns}


@pytest.mark.parametrize("number", [7, 8])
def test_the_papers_capacity_stands_beside_both_readings(number):
    metrics = load(f"table{number}").metrics("paper")
    least, most = "Capacity least (section 4.1)", "Capacity most (Table 6)"
    assert (metrics[least], metrics[most]) == ("expert.capacity", "expert.capacity_most")
    for line in fine_tuning(number).values():
        assert line[least] == line[most] < 0.06
        assert line["Load Balance"] > 5 > line["Collaboration"] > 4 > line["Specialization"] > 0.29


@pytest.mark.parametrize("number", [4, 5])
def test_averages_are_those_of_their_line(number):
    for line in fine_tuning(number).values():
        mean = sum(line[task] for task in FIVE) / len(FIVE)
        assert line["average"] == pytest.approx(mean, abs=0.0101), "rounded, or cut off"


def test_olmoes_accuracies_are_shares_of_the_test_sets():
    """To two decimals of a per cent; a wrong task's number would not be one of so few questions."""
    for line in fine_tuning(4).values():
        for task, size in FIVE.items():
            right = round(line[task] / 100 * size)
            assert line[task] == pytest.approx(100 * right / size, abs=0.0101), (task, line[task])


@pytest.mark.parametrize("number", [4, 7, 9, 11])
def test_rows_that_repeat_others_are_marked(number):
    found = fine_tuning(number)
    for rate, schedule in REPEATS.items():
        assert found["none", rate] == found[schedule, "-"]
    same = [
        each for each in load(f"table{number}").paper if "the same numbers as" in (each.mark or "")
    ]
    marked = {each.cell["method.router_lr"] for each in same}
    assert marked == set(REPEATS)


def test_the_sweet_point_is_within_one_standard_error_of_full_fine_tuning():
    """+0.19 points between averages whose standard error is 0.47, as tables here compute it."""
    found = fine_tuning(4)
    mean = mean_of(found["none-router", "-"], FIVE)
    assert mean.stderr == pytest.approx(0.0047, abs=0.0001)
    gain = found["none-router", "-"]["average"] - found["none", "-"]["average"]
    assert gain == pytest.approx(0.19) and gain / 100 < mean.stderr
    mean = mean_of(table3()["2/8", "token"], SIZES)
    assert mean.stderr == pytest.approx(0.0040, abs=0.00005)
