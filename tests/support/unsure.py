"""How unsure a distribution is, in plain loops."""

from __future__ import annotations

import math


def slow_measure(probs_V, measure):
    values = sorted(map(float, probs_V), reverse=True)
    if measure == "margin":
        return values[0] - values[1]
    return -math.fsum(value * math.log(value) for value in values if value > 0)
