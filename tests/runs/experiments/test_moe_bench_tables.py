"""MoE-Bench's published numbers in `experiments/moe_bench`, and what is wrong with some of them.

Broken by: a number in another one's place, a row that repeats another one without being marked, a standard error of an
average that is not that of independent tasks.
"""

from __future__ import annotations

import math

import pytest

from moe_lab.reports.papers.experiment import Experiment, find_experiments
from moe_lab.results.score_table import task_mean
from moe_lab.results.scores import Score

SIZES = {"arc_challenge": 1172, "arc_easy": 2376, "mmlu": 14042, "piqa": 1838, "winogrande": 1267}
REPEATS = {"1e-05": "experts", "5e-06": "router", "2e-06": "experts-router"}


def table(number: int) -> Experiment:
    [found] = find_experiments(f"moe_bench/table{number}")
    return found


def lines(experiment: Experiment) -> dict[tuple[str, str], dict[str, float]]:
    """{(schedule, router rate): {column: value}}"""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for each in experiment.paper:
        cell = each.cell
        column = ", ".join(cell[key] for key in ("task", "measure") if key in cell)
        found.setdefault((cell["method.schedule"], cell["method.router_lr"]), {})[column] = each.value
    return found


@pytest.mark.parametrize(
    ("number", "rows", "columns"),
    [(4, 12, 6), (5, 13, 6), (7, 12, 5), (8, 13, 5), (9, 12, 9), (10, 13, 9), (11, 12, 3), (12, 13, 3)],
)
def test_all_numbers_of_a_table_are_there(number, rows, columns):
    found = lines(table(number))
    assert len(found) == rows and {len(line) for line in found.values()} == {columns}


@pytest.mark.parametrize("number", [7, 8])
def test_the_papers_capacity_stands_beside_both_readings(number):
    metrics = table(number).metrics("paper")
    least, most = "Capacity least (section 4.1)", "Capacity most (Table 6)"
    assert (metrics[least], metrics[most]) == ("expert.capacity", "expert.capacity_most")
    for line in lines(table(number)).values():
        assert line[least] == line[most] < 0.06
        assert line["Load Balance"] > 5 > line["Collaboration"] > 4 > line["Specialization"] > 0.29


@pytest.mark.parametrize("number", [4, 5])
def test_averages_are_those_of_their_line(number):
    for line in lines(table(number)).values():
        mean = sum(line[task] for task in SIZES) / len(SIZES)
        assert line["average"] == pytest.approx(mean, abs=0.0101), "rounded, or cut off"


def test_olmoes_accuracies_are_shares_of_the_test_sets():
    """To two decimals of a per cent; a wrong task's number would not be one of so few questions."""
    for line in lines(table(4)).values():
        for task, size in SIZES.items():
            right = round(line[task] / 100 * size)
            assert line[task] == pytest.approx(100 * right / size, abs=0.0101), (task, line[task])


@pytest.mark.parametrize("number", [4, 7, 9, 11])
def test_rows_that_repeat_others_are_marked(number):
    found = lines(table(number))
    for rate, schedule in REPEATS.items():
        assert found["none", rate] == found[schedule, "-"]
    marked = {
        each.cell["method.router_lr"]
        for each in table(number).paper
        if each.mark and "the same numbers as" in each.mark
    }
    assert marked == set(REPEATS)


def test_the_sweet_point_is_within_one_standard_error_of_full_fine_tuning():
    """+0.19 points between averages whose standard error is 0.47, as tables here compute it."""
    found = lines(table(4))
    rows = [
        Score(model="m", method="f", task=task, metric="acc,none", run_id="r", value=share,
            stderr=math.sqrt(share * (1 - share) / (SIZES[task] - 1)))
        for task in SIZES
        for share in [found["none-router", "-"][task] / 100]
    ]  # fmt: skip
    mean = task_mean(rows)
    assert mean is not None and mean.stderr == pytest.approx(0.0047, abs=0.0001)
    gain = found["none-router", "-"]["average"] - found["none", "-"]["average"]
    assert gain == pytest.approx(0.19) and gain / 100 < mean.stderr
