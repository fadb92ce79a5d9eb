"""Numbers of a training in a paper's table.

Broken by an interval over one seed's rows for several seeds, by the loss of another task's run beside the first, by an
average over tasks that counts the loss as one, by a mark for part of the documents on held-out rows.
"""

from __future__ import annotations

import csv
import io

import pytest

from moe_lab.errors import ConfigError
from moe_lab.reports.papers.metrics import LOSS, training_score
from tests.support.pretrained_cells import design_cells, experiment, trained_results
from tests.support.stored_results import results_of
from tests.support.views import csv_text, markdown


def test_one_seed_has_an_interval_over_rows():
    results = trained_results([2.0, 2.2, 2.4])
    score = training_score([results], LOSS)
    assert score is not None and score.value == pytest.approx(2.2) and score.std is None
    assert score.interval == pytest.approx(results["moe_lab"]["pretrain"]["training"]["validation"]["ci95"])
    assert (score.n, score.marks, score.stderr) == (None, (), None)


def test_several_seeds_have_students_interval_over_seeds():
    score = training_score([trained_results([mean - 1, mean + 1]) for mean in (2.0, 2.1, 2.3)], LOSS)
    assert score is not None and score.seeds == 3
    assert (score.value, score.std) == (pytest.approx(6.4 / 3), pytest.approx(0.152753, abs=1e-6))
    half = 4.302653 * 0.152753 / 3**0.5
    assert score.seed_interval == pytest.approx((6.4 / 3 - half, 6.4 / 3 + half), abs=1e-5)
    assert score.interval is None, "rows are not its sample"


def test_an_interval_over_seeds_is_shown_as_one():
    cells = design_cells("2/8", [[1.0, 3.0], [1.1, 3.1], [1.3, 3.3]])
    shown = "2.1333 ± 0.1528 seeds [1.7539, 2.5128]"
    text = markdown(experiment(), "paper", cells)
    assert f"| {shown} |" in text, "in the ranking"
    assert text.count(shown) == 2
    loss = next(
        line for line in csv.DictReader(io.StringIO(csv_text(experiment(), cells))) if line["metric"] == LOSS
    )
    assert (loss["low"], loss["high"]) == ("", "")
    assert float(loss["seed_low"]) == pytest.approx(1.7539, abs=1e-4)


def test_a_leak_is_that_of_expert_choice_alone():
    score = training_score([trained_results([2.0, 2.0], leak=0.3)], "training.leak")
    assert score is not None and (score.value, score.interval) == (0.3, pytest.approx((0.2, 0.4)))
    score = training_score([trained_results([2.0, 2.0])], "training.leak")
    assert score is not None and score.value is None, "a dash, not a missing run"


def test_other_methods_have_none_and_unknown_numbers_are_told():
    assert training_score([results_of("base")], LOSS) is None
    with pytest.raises(ConfigError, match="training.validation_loss, training.leak"):
        training_score([trained_results([2.0, 2.0])], "training.loss")


def test_the_loss_is_one_column_beside_the_tasks():
    cells = design_cells("2/8", [[2.0, 2.2]], accuracy=0.4)
    text = markdown(experiment(), "paper", cells)
    header, _, line = [each for each in text.splitlines() if each.startswith("|")][:3]
    assert header == (
        "| method.label | method.router | documents | a accuracy | b accuracy | held-out loss | average accuracy |"
    )
    assert "| 2.1000 [" in line and line.endswith("] PARTIAL |")
    assert "- a accuracy: acc,none, 0.25 by chance" in text
    assert "- held-out loss: cross-entropy of held-out rows, nats per token, lower is better" in text
    *_, average = csv.DictReader(io.StringIO(csv_text(experiment(), cells)))
    assert (average["task"], average["value"]) == ("average", "0.4")


def test_the_loss_stands_beside_averages_that_stand_alone():
    text = markdown(experiment(columns=["measure"]), "paper", design_cells("2/8", [[2.0, 2.2]]))
    header = next(each for each in text.splitlines() if each.startswith("|"))
    assert header == "| method.label | method.router | documents | held-out loss | accuracy average |"
