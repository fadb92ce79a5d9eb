"""How well a model's confidence says whether its answers are right: expected calibration error and
AUROC, with 95% intervals over documents.

A = answers, N = documents, B = bins of confidence, R = resamples, U = distinct confidences.

**Expected calibration error** (Guo et al., 2017): answers are binned by confidence, and

    ECE = sum over bins b of |m_b|,    m_b = mean over documents of (right - confidence) in bin b.

The sampled |m_b| is too large where the true m_b is near 0, and a bootstrap of the absolute values
has the same bias once more. So the interval bounds the error of the sampled m_b + h_b by what holds
for every m_b:

    |m_b + h_b| - |m_b| <= |h_b|, and sign(m_b) h_b where the sign of m_b is beyond doubt,
    |m_b| - |m_b + h_b| <= -sign(m_b) h_b,

with h_b of resampled documents. It holds the truth in 95% of the cases where no bin is near 0, and
in up to 99% elsewhere. A model that is perfectly calibrated has an interval that begins at 0.

**AUROC**: how probable it is that a right answer has more confidence than a wrong one; a tie counts
half. Its interval is normal on the scale of log-odds, with the standard deviation of resampled
documents: percentiles are too narrow for 150 documents (93%). That of a difference of two AUROCs is
the percentile bootstrap of `moe_lab.results.statistics`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from moe_lab.results import statistics
from moe_lab.results.measured import Difference, Value
from moe_lab.results.statistics import SEED, Z, percentiles
from moe_lab.results.stored import Interval

BINS = 15
"""Bins of equal width between 0 and 1, as in Guo et al."""
BEYOND_DOUBT = 3.0
"""Standard errors from 0 at which the sign of a bin's m_b is taken as known."""


@dataclass(frozen=True)
class Answers:
    """The confidence of answers, and whether each is right. Documents count alike, whatever number
    of answers they have."""

    confidence_A: np.ndarray
    """float64, 0 to 1."""
    right_A: np.ndarray
    """float64: 0 or 1."""
    document_A: np.ndarray
    """int64: the place of the answer's document, 0 to N - 1."""

    @classmethod
    def of(
        cls, confidence: Sequence[float], right: Sequence[float], document: Sequence[int]
    ) -> Self:
        """From lists with an entry for each answer."""
        return cls(
            np.asarray(confidence, dtype=float),
            np.asarray(right, dtype=float),
            np.asarray(document, dtype=np.int64),
        )

    @property
    def documents(self) -> int:
        """N"""
        return int(self.document_A.max()) + 1

    @cached_property
    def weight_A(self) -> np.ndarray:
        """float64: 1 / number of answers of the document."""
        return 1 / np.bincount(self.document_A)[self.document_A]

    @cached_property
    def bin_A(self) -> np.ndarray:
        """int64: the bin of each answer. A confidence of 1 is in the last one."""
        return np.minimum((self.confidence_A * BINS).astype(np.int64), BINS - 1)

    def mean(self, values_A: np.ndarray) -> float:
        """The mean over documents of the mean over a document's answers."""
        return float((self.weight_A * values_A).sum() / self.documents)


def summary(answers: Answers) -> dict[str, Any]:
    """The numbers of confidence.json that need no other run, as plain values."""
    return {
        "documents": answers.documents,
        "answers": len(answers.right_A),
        "accuracy": answers.mean(answers.right_A),
        "mean_confidence": answers.mean(answers.confidence_A),
        "ece": calibration_error(answers).to_json()
        | {"if_calibrated": error_if_calibrated(answers)},
        "auroc": auroc(answers).to_json(),
        "bins": reliability(answers),
    }


def reliability(answers: Answers) -> list[dict[str, Any]]:
    """Of each bin that has answers: its limits, the share of documents, mean confidence and
    accuracy."""
    lines = []
    for number in range(BINS):
        weight_A = answers.weight_A * (answers.bin_A == number)
        total = float(weight_A.sum())
        if not total:
            continue
        line = {
            "from": number / BINS,
            "to": (number + 1) / BINS,
            "share": total / answers.documents,
            "confidence": float((weight_A * answers.confidence_A).sum() / total),
            "accuracy": float((weight_A * answers.right_A).sum() / total),
        }
        lines.append(line)
    return lines


def calibration_error(answers: Answers) -> Value:
    """ECE and its interval; None for a single document."""
    errors = _BinErrors(answers)
    if answers.documents < 2:
        return Value(value=errors.ece)
    [changes_RB] = _resampled_changes([errors])
    above_R = errors.most_above(changes_RB)
    below_R = errors.most_below(changes_RB)
    _, most_above = percentiles(above_R, answers.documents)
    _, most_below = percentiles(below_R, answers.documents)
    low = max(0.0, errors.ece - most_above)
    high = min(1.0, errors.ece + most_below)
    return Value(value=errors.ece, interval=(low, high))


def difference_of_errors(answers: Answers, others: Answers) -> Difference:
    """ECE minus that of another run on the same documents, with the interval of both errors
    together."""
    errors = _BinErrors(answers)
    other_errors = _BinErrors(others)
    difference = statistics.difference_of(errors.ece, other_errors.ece)
    if answers.documents < 2:
        return Difference(difference=difference)
    changes_RB, other_changes_RB = _resampled_changes([errors, other_errors])
    above_R = errors.most_above(changes_RB) + other_errors.most_below(other_changes_RB)
    below_R = errors.most_below(changes_RB) + other_errors.most_above(other_changes_RB)
    _, most_above = percentiles(above_R, answers.documents)
    _, most_below = percentiles(below_R, answers.documents)
    return Difference(
        difference=difference, interval=(difference - most_above, difference + most_below)
    )


def error_if_calibrated(answers: Answers) -> float:
    """The mean ECE of answers with these confidences each of which is right with a probability of
    its confidence: what sampling alone makes of an ECE of 0.

    The sum over bins of the mean of |normal variable|; answers of a document are independent.
    """
    variance_A = answers.weight_A**2 * answers.confidence_A * (1 - answers.confidence_A)
    variance_B = np.bincount(answers.bin_A, variance_A, minlength=BINS)
    return float(np.sqrt(2 * variance_B / math.pi).sum() / answers.documents)


class _BinErrors:
    """The m_b of answers."""

    def __init__(self, answers: Answers):
        self.terms_BN = np.zeros((BINS, answers.documents))
        """Each document's mean over its answers of (right - confidence) in a bin."""
        error_A = answers.weight_A * (answers.right_A - answers.confidence_A)
        np.add.at(self.terms_BN, (answers.bin_A, answers.document_A), error_A)
        self.mean_B = self.terms_BN.mean(axis=1)
        self.sign_B = np.sign(self.mean_B)
        deviation_B = self.terms_BN.std(axis=1) / math.sqrt(answers.documents)
        self.is_clear_B = np.abs(self.mean_B) > BEYOND_DOUBT * deviation_B

    @property
    def ece(self) -> float:
        """The expected calibration error."""
        return float(np.abs(self.mean_B).sum())

    def most_above(self, changes_RB: np.ndarray) -> np.ndarray:
        """float64 [R]: how much the error can be above the truth with these h_b."""
        signed_RB = self.sign_B * changes_RB
        return np.where(self.is_clear_B, signed_RB, np.abs(changes_RB)).sum(axis=1)

    def most_below(self, changes_RB: np.ndarray) -> np.ndarray:
        """float64 [R]: how much it can be below the truth."""
        return -(self.sign_B * changes_RB).sum(axis=1)


def _resampled_changes(errors: Sequence[_BinErrors]) -> list[np.ndarray]:
    """The h_b of each run, float64 [R, B]: m_b of resampled documents minus m_b. All runs share the
    drawn documents."""
    documents = errors[0].terms_BN.shape[1]
    changes: list[list[np.ndarray]] = [[] for _ in errors]
    for counts_RN in _resampled_counts(documents):
        for of_run, error in zip(changes, errors, strict=True):
            means_RB = counts_RN @ error.terms_BN.T / documents
            of_run.append(means_RB - error.mean_B)
    return [np.concatenate(of_run) for of_run in changes]


def auroc(answers: Answers) -> Value:
    """The area under the ROC curve of right against wrong answers.

    None where all answers are right, or all wrong. No interval for a single document, and where
    confidence separates all right answers from all wrong ones: resampled documents do so, too.
    """
    from scipy.special import expit, logit

    value = _auroc(answers)
    if value is None:
        return Value()
    if answers.documents < 2 or value in (0.0, 1.0):
        return Value(value=value)
    [areas_R] = _resampled_aurocs([answers])
    # an area of 0 or 1 has no log-odds: half a pair less
    pairs = answers.right_A.sum() * (1 - answers.right_A).sum()
    nearest = 1 / (2 * float(pairs))
    deviation = float(np.nanstd(logit(np.clip(areas_R, nearest, 1 - nearest))))
    centre = float(logit(value))
    low = float(expit(centre - Z * deviation))
    high = float(expit(centre + Z * deviation))
    return Value(value=value, interval=(low, high))


def difference_of_aurocs(answers: Answers, others: Answers) -> Difference:
    """AUROC minus that of another run on the same documents, which are resampled together."""
    value = _auroc(answers)
    other = _auroc(others)
    if value is None or other is None:
        return Difference()
    difference = statistics.difference_of(value, other)
    interval: Interval | None = None
    are_perfect = value in (0.0, 1.0) and other in (0.0, 1.0)
    if answers.documents > 1 and not are_perfect:
        scores_R, others_R = _resampled_aurocs([answers, others])
        interval = percentiles(scores_R - others_R, answers.documents)
    return Difference(difference=difference, interval=interval)


def _auroc(answers: Answers) -> float | None:
    """The area; None where all answers are right, or all wrong."""
    area = float(_Ranked(answers).areas(np.ones((1, answers.documents)))[0])
    return None if math.isnan(area) else area


class _Ranked:
    """Answers in the order of their confidence."""

    def __init__(self, answers: Answers):
        order_A = np.argsort(answers.confidence_A, kind="stable")
        self.document_A = answers.document_A[order_A]
        self.weight_A = answers.weight_A[order_A]
        self.right_A = answers.right_A[order_A]
        _, self.start_U = np.unique(answers.confidence_A[order_A], return_index=True)

    def areas(self, counts_RN: np.ndarray) -> np.ndarray:
        """float64 [R]: the areas where each document is there so many times; NaN without right or
        without wrong answers."""
        weight_RA = counts_RN[:, self.document_A] * self.weight_A
        right_RU = np.add.reduceat(weight_RA * self.right_A, self.start_U, axis=1)
        wrong_RU = np.add.reduceat(weight_RA * (1 - self.right_A), self.start_U, axis=1)
        below_RU = wrong_RU.cumsum(axis=1) - wrong_RU / 2
        pairs_R = right_RU.sum(axis=1) * wrong_RU.sum(axis=1)
        pairs_R = np.where(pairs_R > 0, pairs_R, math.nan)
        return (right_RU * below_RU).sum(axis=1) / pairs_R


def _resampled_aurocs(samples: Sequence[Answers]) -> list[np.ndarray]:
    """The areas of resampled documents, float64 [R] of each run. All runs share the drawn
    documents."""
    documents = samples[0].documents
    ranked = [_Ranked(answers) for answers in samples]
    areas: list[list[np.ndarray]] = [[] for _ in samples]
    for counts_RN in _resampled_counts(documents):
        for of_run, run in zip(areas, ranked, strict=True):
            of_run.append(run.areas(counts_RN))
    return [np.concatenate(of_run) for of_run in areas]


def _resampled_counts(documents: int) -> Iterator[np.ndarray]:
    """How often each document is drawn, float64 [resamples at once, N], RESAMPLES in all. The draws
    are the same in each call."""
    random = np.random.default_rng(SEED)
    at_once = max(1, 2**20 // documents)  # 8 MiB
    for start in range(0, statistics.RESAMPLES, at_once):
        size = min(at_once, statistics.RESAMPLES - start)
        draw_RN = random.integers(documents, size=(size, documents))
        place_RN = draw_RN + documents * np.arange(size)[:, None]
        counts = np.bincount(place_RN.reshape(-1), minlength=size * documents)
        yield counts.reshape(size, documents).astype(float)
