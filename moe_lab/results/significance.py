"""When a difference counts as one: the level, and Holm's correction for many tests."""

from collections.abc import Sequence

import numpy as np

ALPHA = 0.05
"""A difference is significant where its corrected p is below this."""


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) corrected p-values of the tests of one table, in their order.

    Where corrected p-values below 0.05 are called differences, the probability of one or more false
    ones among them is at most 5%, whatever the dependence between the tests. None stands for no
    test: it stays None and does not count.
    """
    p_T = np.array([p for p in p_values if p is not None])
    order_T = np.argsort(p_T)
    # The numbers of statsmodels' multipletests, which collects garbage at every call: 0.2 seconds
    # and more.
    factor_T = np.arange(len(p_T), 0, -1)
    stepped_T = np.maximum.accumulate(factor_T * p_T[order_T]).clip(max=1.0)
    corrected_T = iter(stepped_T[np.argsort(order_T)].tolist())
    return [None if p is None else next(corrected_T) for p in p_values]
