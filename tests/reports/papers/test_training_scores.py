"""Numbers of a training in a paper's table.

Broken by an interval over one seed's rows for several seeds, by the loss of another task's
run next to the first, by an average over tasks that counts the loss as one, by a mark for part
of the documents on held-out rows.

Expert metrics and comparisons with other runs in a paper's table.

Broken by: a metric in another one's column, the capacity of the most activated expert
where the least is meant, one task's loss for that of all, a difference to base that is
called one to full fine-tuning.
"""

import csv
import io
from dataclasses import replace

import pytest

from moe_lab.errors import ConfigError
from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment, Scale
from moe_lab.reports.papers.expert_scores import expert_score
from moe_lab.reports.papers.training_scores import LOSS, training_score
from moe_lab.results.model import RunResult
from tests.support.stored_results import EXPERT_METRICS, expert_results, results_of
from tests.support.trained_cells import design_cells, experiment, trained_results
from tests.support.views import csv_text, markdown


def test_one_seed_has_an_interval_over_rows():
    results = trained_results([2.0, 2.2, 2.4])
    score = training_score([results], LOSS)
    assert score is not None
    assert score.value == pytest.approx(2.2)
    assert score.std is None
    assert score.interval == pytest.approx(
        results["moe_lab"]["pretrain"]["training"]["validation"]["ci95"]
    )
    assert (score.n, score.marks, score.stderr) == (None, (), None)


def test_several_seeds_have_students_interval_over_seeds():
    score = training_score(
        [trained_results([mean - 1, mean + 1]) for mean in (2.0, 2.1, 2.3)], LOSS
    )
    assert score is not None
    assert score.seeds == 3
    assert (score.value, score.std) == (pytest.approx(6.4 / 3), pytest.approx(0.152753, abs=1e-6))
    half = 4.302653 * 0.152753 / 3**0.5
    assert score.seed_interval == pytest.approx((6.4 / 3 - half, 6.4 / 3 + half), abs=1e-5)
    assert score.interval is None, "rows are not its sample"


def test_a_leak_is_that_of_expert_choice_alone():
    score = training_score([trained_results([2.0, 2.0], leak=0.3)], "training.leak")
    assert score is not None
    assert (score.value, score.interval) == (0.3, pytest.approx((0.2, 0.4)))
    score = training_score([trained_results([2.0, 2.0])], "training.leak")
    assert score is not None, "a dash, not a missing run"
    assert score.value is None, "a dash, not a missing run"


def test_other_methods_have_none_and_unknown_numbers_are_told():
    assert training_score([results_of("base")], LOSS) is None
    with pytest.raises(ConfigError, match="training.validation_loss, training.leak"):
        training_score([trained_results([2.0, 2.0])], "training.loss")
    with pytest.raises(ConfigError, match="expert.load_balance, expert.collaboration"):
        expert_score(expert_results(), StoredMetrics(EXPERT_METRICS), "expert.balance")


def test_the_loss_is_one_column_beside_the_tasks():
    cells = design_cells("2/8", [[2.0, 2.2]], accuracy=0.4)
    text = markdown(experiment(), "paper", cells)
    header, _, line = [line_text for line_text in text.splitlines() if line_text.startswith("|")][
        :3
    ]
    assert header == (
        "| method.label | method.router | documents | a accuracy | b accuracy | held-out loss | "
        "average accuracy |"
    )
    assert "| 2.1000 [" in line
    assert line.endswith("] PARTIAL |")
    assert "- a accuracy: acc,none, 0.25 by chance" in text
    assert (
        "- held-out loss: cross-entropy of held-out rows, nats per token, lower is better" in text
    )
    *_, average = csv.DictReader(io.StringIO(csv_text(experiment(), cells)))
    assert (average["task"], average["value"]) == ("average", "0.4")


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
    metrics = StoredMetrics(EXPERT_METRICS | {"differences": {"full": difference}})
    assert expert_score(expert_results(), metrics, "expert.load_balance").difference is None, (
        "that is to base"
    )
    names = ("load_balance", "capacity", "capacity_most", "specialization")
    rows = {
        name: expert_score(expert_results(), metrics, f"expert.{name}", "full") for name in names
    }
    assert {name: (row.difference, row.difference_interval) for name, row in rows.items()} == {
        "load_balance": (0.1, (0.05, 0.15)),
        "capacity": (None, None),
        "capacity_most": (0.2, None),
        "specialization": (0.3, (0.25, 0.35)),
    }


def experiment_of(**changes) -> Experiment:
    settings = {
        "rows": ["method.schedule"],
        "columns": ["measure"],
        "scales": {"tiny": Scale()},
        "paper": [],
    }
    metric = {"Load Balance": "expert.load_balance", "accuracy": "headline"}
    return Experiment(
        **({"name": "x", "title": "X", "source": "", "metric": metric} | settings | changes)
    )


def test_a_metric_of_which_lower_is_better_says_so():
    judged = {"results": {"t": {"toy,none": 0.1}}, "higher_is_better": {"t": {"toy": False}}}
    results = [RunResult(expert_results().content | judged)]
    cell = TableCell(coordinates={}, run_id="r1", metric="toy,none", results=results)
    assert cell.shows() == "toy,none, lower is better"


def test_seeds_without_expert_metrics_are_left_out():
    """Not given another seed's.

    A run without them, or without the metric, has no score: not that of its first metric.
    """
    results = [expert_results(), expert_results(run_id="r2")]
    cell = TableCell(
        coordinates={}, run_id="r1", metric="expert.capacity", results=results[:1], expert=[None]
    )
    assert cell.score() is None
    row = replace(cell, results=results, expert=[None, StoredMetrics(EXPERT_METRICS)]).score()
    assert row is not None
    assert (row.run_id, row.seeds) == ("r2", 1)
    assert replace(cell, metric="llama_guard,none").score() is None


def test_a_scale_may_have_other_metrics_and_several_need_their_axis():
    own_scale = Scale(metric={"Toy judge": "toy,none"})
    assert experiment_of(scales={"tiny": own_scale, "paper": Scale()}).metrics("tiny") == {
        "Toy judge": "toy,none"
    }
    for wrong in ({"scales": {"tiny": Scale(metric="acc,none")}}, {"columns": ["task"]}):
        with pytest.raises(ConfigError, match="measure in rows or columns"):
            experiment_of(**wrong)
