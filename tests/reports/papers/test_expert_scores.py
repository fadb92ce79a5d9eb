"""Expert metrics and comparisons with other runs in a paper's table.

Broken by: a metric in another one's column, the capacity of the most activated expert where the least is meant, one
task's loss for that of all, a difference to base that is called one to full fine-tuning.
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from moe_lab.errors import ConfigError
from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment, Scale
from moe_lab.reports.papers.metrics import expert_score
from moe_lab.results.model import RunResult
from tests.support.stored_results import EXPERT_METRICS, expert_results
from tests.support.views import csv_text, markdown


@pytest.mark.parametrize(
    ("metric", "value", "interval"),
    [
        ("load_balance", 3.5, (3.4, 3.6)),
        ("collaboration", 2.5, None),
        ("capacity", 0.02, (pytest.approx(-0.08), pytest.approx(0.12))),
        ("capacity_most", 0.3, (pytest.approx(0.2), pytest.approx(0.4))),
        ("specialization", 0.25, (pytest.approx(0.15), pytest.approx(0.35))),
    ],
)
def test_each_metric_is_found(metric, value, interval):
    row = expert_score(expert_results(), StoredMetrics(EXPERT_METRICS), f"expert.{metric}")
    assert (row.value, row.interval, row.n, row.stderr) == (value, interval, 4, None)


def test_the_difference_is_that_of_the_metric_and_the_other_run():
    difference = {
        "load_balance/all": {"difference": 0.1, "ci95": [0.05, 0.15]},
        "capacity/most/tasks/t/acc,none": {"difference": 0.2, "ci95": None},
        "specialization/tasks/all/acc,none": {"difference": 0.3, "ci95": [0.25, 0.35]},
    }
    found = StoredMetrics(EXPERT_METRICS | {"differences": {"full": difference}})
    assert expert_score(expert_results(), found, "expert.load_balance").difference is None, "that is to base"
    rows = {
        name: expert_score(expert_results(), found, f"expert.{name}", "full")
        for name in ("load_balance", "capacity", "capacity_most", "specialization")
    }
    assert {name: (row.difference, row.difference_interval) for name, row in rows.items()} == {
        "load_balance": (0.1, (0.05, 0.15)),
        "capacity": (None, None),
        "capacity_most": (0.2, None),
        "specialization": (0.3, (0.25, 0.35)),
    }


def test_an_unknown_metric_is_told():
    with pytest.raises(ConfigError, match="expert.load_balance, expert.collaboration"):
        expert_score(expert_results(), StoredMetrics(EXPERT_METRICS), "expert.balance")


def experiment(**more) -> Experiment:
    told = {"rows": ["method.schedule"], "columns": ["measure"], "scales": {"tiny": Scale()}, "paper": []}
    metric = {"Load Balance": "expert.load_balance", "accuracy": "headline"}
    return Experiment(**({"name": "x", "title": "X", "source": "", "metric": metric} | told | more))


def test_several_metrics_are_columns():
    cells = [
        TableCell(
            coordinates={"method.schedule": "router", "measure": name},
            run_id="r1",
            metric=metric,
            results=[expert_results()],
            expert=[StoredMetrics(EXPERT_METRICS)],
        )
        for name, metric in experiment().metrics("tiny").items()
    ]
    text = markdown(experiment(), "paper", cells)
    assert "| method.schedule | documents | Load Balance | accuracy |" in text
    assert "| router | 4 | 3.5000 [3.4000, 3.6000] | 0.6000 (0.0500) [0.4000, 0.8000] |" in text
    assert text.count("- router: r1") == 1, "one run, whatever is shown of it"
    assert "- Load Balance: bits\n- accuracy: acc,none\n" in text
    judged = {"results": {"t": {"toy,none": 0.1}}, "higher_is_better": {"t": {"toy": False}}}
    cell = TableCell(
        coordinates={}, run_id="r1", metric="toy,none", results=[RunResult(dict(expert_results()) | judged)]
    )
    assert cell.shows() == "toy,none, lower is better"


def test_a_run_without_expert_metrics_has_none():
    cell = TableCell(
        coordinates={}, run_id="r1", metric="expert.capacity", results=[expert_results()], expert=[None]
    )
    assert cell.score() is None


def test_seeds_without_expert_metrics_are_left_out():
    """Not given another seed's."""
    second = expert_results(run_id="r2")
    cell = TableCell(
        coordinates={},
        run_id="r1",
        metric="expert.capacity",
        results=[expert_results(), second],
        expert=[None, StoredMetrics(EXPERT_METRICS)],
    )
    row = cell.score()
    assert row is not None and (row.run_id, row.seeds) == ("r2", 1)


def test_a_metric_that_the_task_does_not_have_is_missing():
    """Not its first metric in the place of, say, a judge that was not asked."""
    cell = TableCell(coordinates={}, run_id="r1", metric="llama_guard,none", results=[expert_results()])
    assert cell.score() is None


def test_a_scale_may_have_other_metrics():
    own = Scale(metric={"Toy judge": "toy,none"})
    assert experiment(scales={"tiny": own, "paper": Scale()}).metrics("tiny") == {"Toy judge": "toy,none"}
    with pytest.raises(ConfigError, match="measure in rows or columns"):
        experiment(scales={"tiny": Scale(metric="acc,none")})


def test_several_metrics_need_their_axis():
    with pytest.raises(ConfigError, match="measure in rows or columns"):
        experiment(columns=["task"])


def test_a_comparison_with_full_fine_tuning_has_a_column_of_its_own():
    paired = {"t": {"acc,none": {"difference": 0.2, "ci95": [0.1, 0.3], "p_mcnemar": 0.01}}}
    full = {
        "run_id": "f",
        "results": {"t": {"acc,none": 0.7}},
        "paired": {"t": {"acc,none": {"difference": -0.1}}},
    }
    told = expert_results(
        baseline={"run_id": "b", "results": {"t": {"acc,none": 0.4}}},
        paired=paired,
        compared={"full_fine_tuning": full},
    )
    cell = TableCell(coordinates={"method.schedule": "router", "method": "x"}, run_id="r1", results=[told])
    table = experiment(columns=["method"], metric="headline")
    text = markdown(table, "paper", [cell])
    assert "| x - base | x - full fine tuning |" in text
    assert "| **+0.2000 [+0.1000, +0.3000]** (p=0.01) | -0.1000 |" in text
    score = {"ci95_documents": [0.5, 0.7], "difference_ci95_documents": [0.1, 0.3]}
    score["compared"] = {"full_fine_tuning": {"difference_ci95_documents": [-0.3, 0.1]}}
    seeds = replace(cell, results=[told, told], summary={"scores": {"t": {"acc,none": score}}})
    text = markdown(table, "paper", [seeds])
    assert "| +0.2000 [+0.1000, +0.3000] | -0.1000 [-0.3000, +0.1000] |" in text, "each with its own interval"
    [line] = csv.DictReader(io.StringIO(csv_text(table, [cell])))
    assert (line["difference"], line["full_fine_tuning_difference"], line["p_mcnemar"]) == (
        "0.2",
        "-0.1",
        "0.01",
    )
