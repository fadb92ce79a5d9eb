"""Broken by a sweep that prunes steps of its curve, and by an untuned model without a value."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.tuning.tune import _to_beat


@pytest.mark.parametrize(
    ("tuning", "number", "expected"),
    [("tpe", 0, None), ("tpe", 3, 1.5), ("uniform", 0, None), ("uniform", 3, None)],
)
def test_only_tpe_prunes_and_never_the_untuned_model(
    tuning: str, number: int, expected: float | None
) -> None:
    study: Any = SimpleNamespace(search=SimpleNamespace(tuning=tuning))
    trials: Any = SimpleNamespace(best=lambda: SimpleNamespace(value=1.5))
    trial: Any = SimpleNamespace(number=number)
    assert _to_beat(study, trial, trials) == expected
