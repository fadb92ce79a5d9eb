"""The difference between two runs over the same documents, with its interval and its test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moe_lab.results.significance import randomization_test
from moe_lab.results.statistics import Aggregate, interval_of_difference, is_binary, mcnemar


def paired(
    values: Sequence[Any],
    baseline: Sequence[Any],
    aggregate: Aggregate | None = None,
    *,
    lower_is_better: bool = False,
) -> dict[str, Any]:
    """The difference `values` minus `baseline` over the same documents, in the same order.

    Returns {"n", "difference", "ci95", "p_mcnemar", "p_randomization", "to_right", "to_wrong"}. For 0/1 scores
    `p_mcnemar` is the exact p of McNemar's test and the last two count the documents that changed, 0 being right with
    `lower_is_better`. Other scores have the p of the randomization test instead. What a score does not have is null.
    """
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} and {len(baseline)} documents cannot be paired")
    score = aggregate or (lambda each: float(np.mean(each)))
    ci = interval_of_difference([values], [baseline], aggregate)
    result: dict[str, Any] = {
        "n": len(values),
        "difference": float(score(list(values))) - float(score(list(baseline))),
        "ci95": list(ci) if ci else None,
        "p_mcnemar": None,
        "p_randomization": None,
        "to_right": None,
        "to_wrong": None,
    }
    if aggregate is not None or not (is_binary(values) and is_binary(baseline)):
        return result | {"p_randomization": randomization_test(values, baseline, aggregate)}
    right, wrong = (
        sum(mine > theirs for mine, theirs in zip(*pair, strict=True))
        for pair in ((values, baseline), (baseline, values))
    )
    if lower_is_better:
        right, wrong = wrong, right
    return result | {"p_mcnemar": mcnemar(right, wrong), "to_right": right, "to_wrong": wrong}
