"""Breaks if a loss is taken between different documents, or a document that a judge did not score counts."""

from __future__ import annotations

from typing import Any

import pytest

from moe_lab.metrics.losses import losses


class Task:
    """A task whose metrics are means."""

    def aggregation(self) -> dict[str, Any]:
        return {}


def samples(values: dict[int, float | None], metric: str = "harm") -> list[dict[str, Any]]:
    """As lm-eval logs them; None is a document without a verdict."""
    return [
        {"doc_id": d, "filter": "none", "metrics": [] if value is None else [metric]}
        | ({} if value is None else {metric: value})
        for d, value in values.items()
    ]


def test_documents_without_a_verdict_are_left_out_of_both_sides() -> None:
    base = {"one": samples({0: 1.0, 1: 0.5, 2: None, 3: 0.25})}
    changed = [
        {"one": samples({0: 0.5, 1: None, 2: 1.0, 3: 0.0})},
        {"one": samples({0: 0.0, 1: 1.0, 2: 1.0, 3: 0.0})},
    ]
    found = losses({"one": Task()}, base, changed)["one"]["harm,none"]
    assert found["n"] == 2
    assert found["base"] == pytest.approx(0.625) and found["changed"] == pytest.approx(0.125)
    assert found["difference"] == pytest.approx(0.5)


def test_a_metric_without_any_common_document_has_no_loss() -> None:
    tasks = {"one": Task(), "two": Task()}
    base = {name: samples({0: 1.0}) for name in tasks}
    changed = [{"one": samples({0: 0.0}), "two": samples({0: None})}]
    found = losses(tasks, base, changed)
    assert found["two"] == {} and found["all"] == {} and found["one"]["harm,none"]["n"] == 1
