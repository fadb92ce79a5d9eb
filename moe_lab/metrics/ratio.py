"""A share or a mean over all tokens of sampled documents."""

from __future__ import annotations

from typing import Any

import numpy as np

from moe_lab.results.statistics import LEVEL


def ratio(of_N: np.ndarray, over_N: np.ndarray) -> dict[str, Any]:
    """{"value", "ci95"}: the sum over N documents divided by that of `over_N`, a number of tokens for example.

    The interval is that of a ratio over sampled documents (Cochran, 1977, 6.4): Student's with the standard error of
    the documents' residuals. Null where there are no tokens; no interval for a single document.
    """
    total, N = float(over_N.sum()), len(over_N)
    if not total:
        return {"value": None, "ci95": None}
    value = float(of_N.sum() / total)
    if N < 2:
        return {"value": value, "ci95": None}
    from scipy.stats import t

    error = float(np.std(of_N - value * over_N, ddof=1)) * N**0.5 / total
    half = float(t.ppf((1 + LEVEL) / 2, N - 1)) * error
    return {"value": value, "ci95": [value - half, value + half]}
