"""One metric of a task in one run, or its mean over seeds or tasks."""

from dataclasses import dataclass, field
from typing import Any

from moe_lab.results.model import BASE
from moe_lab.results.significance import ALPHA
from moe_lab.results.stored import Interval

NO_PAIR = (None, None)
"""In the place of an interval, or of two counts, that does not exist."""
ComparisonKey = tuple[str, str, str, str]
"""What identifies a comparison within a command: run ids, task, metric, and the other run."""
BETTER, WORSE, DIFFERENT, NOT_SIGNIFICANT = "better", "worse", "different", "not significant"
EQUAL_RUNS = "equal within rounding"
DOCUMENTS, BOTH = "documents", "seeds and documents"
MCNEMAR, PERMUTATION, SEEDS, AVERAGE = "McNemar", "permutation", "seeds", "average"
"""Tests of a difference: of one run's scores of 0 and 1, of its other scores, of a mean over seeds,
and over tasks."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of a task in one run. Rates are fractions; a number that does not exist is
    None."""

    model: str
    method: str
    task: str
    metric: str
    run_id: str
    n: int | None = None
    seeds: int = 1
    value: float | None = None
    stderr: float | None = None
    """lm-eval's standard error, over documents."""
    std: float | None = None
    """Over seeds."""
    interval: Interval | None = None
    """Over documents (of a number of one training over its held-out rows), as
    `difference_interval`."""
    seed_interval: Interval | None = None
    """Student's, over seeds."""
    baseline: float | None = None
    difference: float | None = None
    difference_interval: Interval | None = None
    difference_seed_interval: Interval | None = None
    difference_both_interval: Interval | None = None
    """Over seeds and documents together, from five seeds on."""
    tested_over: str = DOCUMENTS
    """What the test and its interval are over: DOCUMENTS, SEEDS or BOTH."""
    equal: bool = False
    """Whether no document differs by more than rounding from the other run. Then there is no
    test."""
    p: float | None = None
    """Of its difference."""
    test: str | None = None
    """What `p` is of: MCNEMAR, PERMUTATION, SEEDS (`means.mean_score`) or AVERAGE
    (`means.task_mean`)."""
    p_holm: float | None = None
    """`p`, corrected by Holm for the comparisons of its question
    (`moe_lab.results.family.Family`)."""
    question: str | None = None
    """The scores that were asked for, controls, or another question of the command."""
    family: int | None = None
    """The number of comparisons that `p_holm` is corrected for."""
    other: str = BASE
    """The run that the difference is to: the base model's, or a key of `compared` in
    results.json."""
    changed: tuple[int, int] | None = None
    """Documents that only this run has right, and documents that only the other run has right."""
    lower_is_better: bool | None = False
    """Of the metric; None where a log of lm-eval does not say."""
    marks: tuple[str, ...] = field(default=())

    @property
    def tested_interval(self) -> Interval | None:
        """The interval of its difference that belongs to its test; None without one."""
        intervals = {
            DOCUMENTS: self.difference_interval,
            SEEDS: self.difference_seed_interval,
            BOTH: self.difference_both_interval,
        }
        return intervals[self.tested_over]

    @property
    def significant(self) -> bool:
        """Whether the corrected p is below 0.05."""
        return self.p_holm is not None and self.p_holm < ALPHA

    @property
    def verdict(self) -> str:
        """BETTER, WORSE, DIFFERENT (which of the two is not known), EQUAL_RUNS or NOT_SIGNIFICANT.

        The corrected p decides. A mean over seeds without a p is not significant. Expert metrics of
        one run have no p; their difference is significant if its interval excludes 0.
        """
        if self.equal:
            return EQUAL_RUNS
        if not self.difference or not (self.significant or self._excludes_zero):
            return NOT_SIGNIFICANT
        if self.lower_is_better is None:
            return DIFFERENT
        is_higher = self.difference > 0
        return WORSE if is_higher == self.lower_is_better else BETTER

    @property
    def _excludes_zero(self) -> bool:
        """Whether the interval of one run's difference without a p excludes 0."""
        if self.p_holm is not None or self.seeds != 1 or self.tested_interval is None:
            return False
        low, high = self.tested_interval
        return low > 0 or high < 0

    @property
    def comparison(self) -> ComparisonKey:
        """What identifies its comparison within a command."""
        return self.run_id, self.task, self.metric, self.other

    def columns(self) -> dict[str, Any]:
        """Its columns in every data frame and CSV file (`moe_lab.Results.frame`); a missing number
        is None."""
        low, high = self.interval or NO_PAIR
        seed_low, seed_high = self.seed_interval or NO_PAIR
        difference_low, difference_high = self.tested_interval or NO_PAIR
        to_right, to_wrong = self.changed or NO_PAIR
        return {
            "model": self.model,
            "method": self.method,
            "task": self.task,
            "metric": self.metric,
            "seeds": self.seeds,
            "examples": self.n,
            "value": self.value,
            "low": low,
            "high": high,
            "stderr": self.stderr,
            "std": self.std,
            "seed_low": seed_low,
            "seed_high": seed_high,
            "compared_with": None if self.difference is None else self.other,
            "other_value": self.baseline,
            "difference": self.difference,
            "difference_low": difference_low,
            "difference_high": difference_high,
            "difference_over": self.tested_over if self.tested_interval else None,
            "test": self.test,
            "p": self.p,
            "p_holm": self.p_holm,
            "question": self.question,
            "family": self.family,
            "to_right": to_right,
            "to_wrong": to_wrong,
            "notes": " ".join(self.marks),
        }


NO_SCORE = Score(model="", method="", task="", metric="", run_id="")
"""A score without numbers."""
