"""The difference between two runs over the same documents, with its interval and its test."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moe_lab.results.measured import Paired
from moe_lab.results.randomization import randomization_test
from moe_lab.results.statistics import (
    Aggregate,
    difference_of,
    interval_of_difference,
    is_binary,
    mcnemar,
)


def paired(
    values: Sequence[Any],
    baseline: Sequence[Any],
    aggregate: Aggregate | None = None,
    *,
    lower_is_better: bool = False,
    equal: Sequence[bool] | None = None,
) -> Paired:
    """The difference `values` minus `baseline` over the same documents, in the same order.

    0/1 scores have McNemar's exact p and the numbers of changed documents, 0 being right with
    `lower_is_better`. Other scores have the p of the randomization test instead, in which equal
    documents are ties.

    Args:
        equal: whether each document's values are equal within rounding (`results/rounding.py`); by
            default those that are the same.
    """
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} and {len(baseline)} documents cannot be paired")
    difference = Paired(
        n=len(values),
        difference=difference_of(_score(values, aggregate), _score(baseline, aggregate)),
        interval=interval_of_difference([values], [baseline], aggregate),
    )
    if aggregate is None and is_binary(values) and is_binary(baseline):
        return _with_mcnemar(difference, values, baseline, lower_is_better)

    if equal is None:
        equal = [value == base for value, base in zip(values, baseline, strict=True)]
    if all(equal):
        return difference.model_copy(update={"equal": True})
    tied = []
    for value, base, is_equal in zip(values, baseline, equal, strict=True):
        tied.append(value if is_equal else base)
    p = randomization_test(values, tied, aggregate)
    return difference.model_copy(update={"p_permutation": p})


def _score(values: Sequence[Any], aggregate: Aggregate | None) -> float:
    """The score of all documents."""
    if aggregate is None:
        return float(np.mean(list(values)))
    return float(aggregate(list(values)))


def _with_mcnemar(
    difference: Paired, values: Sequence[Any], baseline: Sequence[Any], lower_is_better: bool
) -> Paired:
    """The difference of 0/1 scores with the numbers of changed documents and McNemar's p."""
    up = 0
    down = 0
    for value, base in zip(values, baseline, strict=True):
        up += int(value > base)
        down += int(value < base)
    to_right, to_wrong = (down, up) if lower_is_better else (up, down)
    p = mcnemar(to_right, to_wrong)
    test = {"p_mcnemar": p, "to_right": to_right, "to_wrong": to_wrong}
    return difference.model_copy(update=test)
