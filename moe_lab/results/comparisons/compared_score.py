"""One metric of a task in two evaluations of the same documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moe_lab.results.paired import paired
from moe_lab.results.significance import ALPHA
from moe_lab.results.statistics import Aggregate, Interval

MCNEMAR, RANDOMIZATION = "McNemar", "randomization"


@dataclass(frozen=True, kw_only=True)
class ComparedScore:
    """A row of a comparison. Rates are fractions."""

    other: str
    """The key of the evaluation that is compared with `a`."""
    task: str
    """A task, or a group whose score is the mean over its documents."""
    metric: str
    """lm-eval's `metric,filter`."""
    n: int
    """Documents that have the metric in both."""
    a: float
    b: float
    """The scores of the first and of the other evaluation over these documents."""
    difference: float
    """`b` minus `a`."""
    ci95: Interval | None
    """95% interval of the difference over documents (`results/statistics.py`); None with fewer than two."""
    p: float
    test: str
    """McNemar's exact test for 0/1 scores, a randomization test for others."""
    p_holm: float
    """`p`, corrected by Holm for all rows of the comparison."""
    higher_is_better: bool | None
    """None if neither result says."""
    to_right: int | None
    """Documents that are wrong in `a` and right in the other; None for scores that are not 0 or 1."""
    to_wrong: int | None
    flips: dict[str, list[int]] | None
    """{"to_right": document numbers, "to_wrong": document numbers}; None for a group, and for other scores."""

    @property
    def told_from_chance(self) -> bool:
        """Whether the corrected p is below 0.05."""
        return self.p_holm < ALPHA

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `different` (the other evaluation, told from chance), or `not told from chance`."""
        if not self.told_from_chance:
            return "not told from chance"
        if self.higher_is_better is None:
            return "different"
        return "better" if (self.difference > 0) == self.higher_is_better else "worse"


def compared_score(
    other: str,
    task: str,
    metric: str,
    values: Sequence[tuple[Any, Any]],
    *,
    aggregate: Aggregate | None,
    higher_is_better: bool | None,
    documents: Sequence[int] | None,
) -> ComparedScore:
    """The row of paired values, before the correction.

    Args:
        values: (value in `a`, value in the other) of each document.
        aggregate: the function from values to the score; None is the mean.
        documents: the number of each document, or None where flips are not listed.
    """
    mine, theirs = [value for value, _ in values], [value for _, value in values]
    found = paired(theirs, mine, aggregate, lower_is_better=higher_is_better is False)
    binary = found["to_right"] is not None
    p = found["p_mcnemar" if binary else "p_randomization"]
    score = aggregate or (lambda each: float(sum(each)) / len(each))
    return ComparedScore(
        other=other,
        task=task,
        metric=metric,
        n=found["n"],
        a=float(score(mine)),
        b=float(score(theirs)),
        difference=found["difference"],
        ci95=None if found["ci95"] is None else (found["ci95"][0], found["ci95"][1]),
        p=p,
        test=MCNEMAR if binary else RANDOMIZATION,
        p_holm=p,
        higher_is_better=higher_is_better,
        to_right=found["to_right"],
        to_wrong=found["to_wrong"],
        flips=_flips(values, documents, higher_is_better) if binary and documents is not None else None,
    )


def _flips(
    values: Sequence[tuple[float, float]], documents: Sequence[int], higher_is_better: bool | None
) -> dict[str, list[int]]:
    """The documents that changed each way."""
    sign = -1 if higher_is_better is False else 1
    changes = [
        (document, sign * (theirs - mine)) for document, (mine, theirs) in zip(documents, values, strict=True)
    ]
    return {
        "to_right": [document for document, change in changes if change > 0],
        "to_wrong": [document for document, change in changes if change < 0],
    }
