"""Timing that holds on a busy machine: everything to be compared takes turns in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def side_by_side(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each candidate over `rounds` turns, after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
