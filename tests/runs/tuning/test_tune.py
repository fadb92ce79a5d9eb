"""What bounds a trial. Broken by: an untuned model or a sweep's step that is pruned, a limit other than the worst."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moe_lab.runs.tuning.tune import _limit


@pytest.mark.parametrize(
    "tuning, scaled, number, limit",
    [
        ("tpe", False, 0, None),
        ("tpe", False, 12, 1.5),
        ("uniform", False, 12, None),
        ("tpe", True, 12, None),
        ("random", False, 12, 1.5),
    ],
)
def test_only_a_samplers_trial_has_a_limit_and_it_is_the_worst_value(tuning, scaled, number, limit):
    study = SimpleNamespace(search=SimpleNamespace(tuning=tuning, logit_scale=scaled))
    trials = SimpleNamespace(worst=lambda: 1.5, best=lambda: SimpleNamespace(value=1.1))
    assert _limit(study, SimpleNamespace(number=number), trials) == limit
