"""95% intervals over documents for ratios, and for values that the jackknife corrects.

N = documents, G = groups of documents that the jackknife leaves out in turn.
"""

from typing import NamedTuple

import numpy as np

from moe_lab.results.measured import Value
from moe_lab.results.statistics import LEVEL
from moe_lab.results.stored import Interval


def ratio(of_N: np.ndarray, over_N: np.ndarray) -> Value:
    """The sum over N documents, divided by the sum of `over_N` (a number of tokens, for example).

    The interval is that of a ratio over sampled documents (Cochran, 1977, 6.4): Student's with the
    standard error of the documents' residuals. The value is None without tokens; the interval is
    None for a single document.
    """
    total = float(over_N.sum())
    if not total:
        return Value(value=None)
    value = float(of_N.sum() / total)
    N = len(over_N)
    if N < 2:
        return Value(value=value)
    residual_N = of_N - value * over_N
    error = float(np.std(residual_N, ddof=1)) * N**0.5 / total
    interval = student_interval(value, error, degrees_of_freedom=N - 1)
    return Value(value=value, interval=interval)


def student_interval(value: float, error: float, degrees_of_freedom: int) -> Interval:
    """Student's 95% interval around a value with this standard error."""
    from scipy.special import stdtrit

    half = float(stdtrit(degrees_of_freedom, (1 + LEVEL) / 2)) * error
    return value - half, value + half


class Corrected(NamedTuple):
    """A value that the jackknife corrects."""

    value: float
    interval: Interval
    """Student's 95% interval with the jackknife's standard error."""


def jackknife(counted: float, without_G: np.ndarray) -> Corrected:
    """The value corrected by the jackknife.

    Args:
        counted: the value of all groups.
        without_G: the value without each of at least two groups.
    """
    G = len(without_G)
    value = G * counted - (G - 1) * float(without_G.mean())
    error = float(np.sqrt((G - 1) * without_G.var()))
    return Corrected(value, student_interval(value, error, degrees_of_freedom=G - 1))
