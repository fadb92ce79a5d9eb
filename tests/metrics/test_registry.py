"""A metric is in the registry alone. Broken by a second place that has to know its name."""

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moe_lab.metrics.interventions import RandomRouting
from moe_lab.metrics.registry import (
    METRICS,
    CountedMetric,
    Evaluate,
    Intervention,
    InterventionMetric,
    Losses,
    Lost,
    Selections,
    evaluations,
    values_of,
)
from moe_lab.metrics.training_metrics import measure
from moe_lab.models.memory import ModelPool
from moe_lab.reports.expert import expert_lines, logged_values
from moe_lab.reports.figures.curves import training_rows
from moe_lab.reports.papers.expert_scores import expert_score
from moe_lab.reports.papers.units import unit_of
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from tests.support.interventions import some_rows
from tests.support.models import small_model
from tests.support.runs import config, small_data
from tests.support.sources import PACKAGE, ROOT, files_in, nodes_of


def used_experts(selections: np.ndarray, experts: Sequence[int]) -> np.ndarray:
    return np.log2((selections > 0).sum(axis=-1))


def top_share(selections: np.ndarray, experts: Sequence[int]) -> np.ndarray:
    return selections.max(axis=-1) / np.maximum(selections.sum(axis=-1), 1)


class Redrawn(InterventionMetric):
    """One more random routing."""

    label = "Redrawn"
    interventions = (Intervention("redrawn", "redrawn", "random experts once more"),)
    evaluations = 1

    def evaluate(
        self, selections: Selections, evaluate: Evaluate, losses: Losses
    ) -> dict[str, Any]:
        samples, cost = evaluate("redrawn", RandomRouting(7))
        return {"tasks": losses([samples]), "cost": cost}

    def measure(self, selections: Selections, lost: Lost) -> dict[str, Any]:
        return lost(RandomRouting(7))


@pytest.fixture
def throw_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three metrics that are in the registry and nowhere else."""
    used = CountedMetric(
        "Used experts", used_experts, maximum=lambda experts: float(np.log2(experts))
    )
    share = CountedMetric("Top share", top_share, maximum=lambda experts: 1.0, unit="share")
    monkeypatch.setitem(METRICS, "used_experts", used)
    monkeypatch.setitem(METRICS, "top_share", share)
    monkeypatch.setitem(METRICS, "redrawn", Redrawn())


def test_a_registered_metric_is_measured_and_shown(
    throw_away, tiny_olmoe_dir, tmp_path, monkeypatch
):
    data = small_data(tmp_path / "data")
    run = prepare(config(tiny_olmoe_dir, data, tmp_path, limit=2, metrics="expert", baseline=False))
    outcome = execute(run, ModelPool())
    metrics = run.stored_metrics()
    assert metrics is not None
    assert evaluations() == 6
    assert metrics.entropies("used_experts")["all"].value <= 3
    assert metrics.content["redrawn"]["tasks"]["arc_easy"]
    units = {"used_experts": "bits", "top_share": "share", "redrawn": "accuracy lost"}
    for name, unit in units.items():
        row = expert_score(outcome.results, metrics, f"expert.{name}")
        assert row.value is not None
        assert unit_of(row.metric) == unit
    shown_lines = {(line.label, line.of) for line in expert_lines(metrics)}
    assert {
        ("Used experts, bits", "all tokens"),
        ("Top share, share", "all tokens"),
        ("Redrawn, acc,none", "random experts once more"),
    } <= shown_lines
    assert {"expert/used_experts/all", "expert/redrawn/arc_easy/acc,none"} <= logged_values(
        metrics
    ).keys()
    monkeypatch.setitem(METRICS, "another", Redrawn())
    assert run.stored_metrics() is None, "what lacks a metric is computed again"


def test_a_metric_of_the_registry_is_measured_while_a_model_is_trained(throw_away):
    line = {"step": 0, "epoch": 0.0} | measure(small_model("olmoe"), some_rows(4))
    values = values_of(line)
    assert values["used_experts"].value is not None
    assert values["redrawn"].value is not None
    (row,) = training_rows([line])
    assert row["redrawn"] == values["redrawn"].value
    assert "used_experts_high" in row


def test_a_training_that_was_measured_before_a_metric_was_registered_has_no_value_of_it(throw_away):
    line = {"step": 0, "epoch": 0.0, "load_balance": {"value": 1.5}}
    values = values_of(line)
    assert values["load_balance"].value == 1.5
    assert values["top_share"].value is None
    assert values["redrawn"].value is None
    [row] = training_rows([line])
    assert row["load_balance"] == 1.5


def test_a_metric_is_named_in_the_registry_alone():
    named = {file.relative_to(ROOT).as_posix(): set(names_in(file)) for file in files_in(PACKAGE)}
    documented = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    assert "`moe_lab/metrics/registry.py`" in documented
    for name in ("specialization", "load_balance", "collaboration"):
        assert [file for file, names in named.items() if name in names] == [
            "moe_lab/metrics/registry.py"
        ]
        assert f"`{name}.py`" not in documented


@cache
def names_in(file: Path) -> set[str]:
    """Names and strings of a module, docstrings aside."""
    docs = {id(node.value) for node in nodes_of(file) if isinstance(node, ast.Expr)}
    names = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        ):
            names.add(node.value)
    return names


def test_capacity_needs_a_layer_of_whose_experts_some_are_not_taken():
    """Masking an expert of a layer in which each token takes all of them would leave too few."""
    counts = np.array([[3, 1, 2, 0], [3, 3, 0, 0]])
    none = METRICS["capacity"].measure(
        Selections(counts, experts=[4, 2], top_k=[2, 2]), lambda policy: {}
    )
    capacities = METRICS["capacity"].measure(
        Selections(counts, experts=[4, 2], top_k=[2, 1]), lambda policy: {}
    )
    assert none is None
    assert {which: capacity["masked"] for which, capacity in capacities.items()} == {
        "least": [3, 0],
        "most": [0, 0],
    }
