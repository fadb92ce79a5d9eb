"""Executes many programs in parallel; the sandbox is probed once per process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from moe_lab.errors import ResultsError, TaskError
from moe_lab.tasks.sandbox.cage import Cage, candidates
from moe_lab.tasks.sandbox.limits import Limits
from moe_lab.tasks.sandbox.probe import broken_promises

PASSED = "passed"
WORKERS = 4
"""Programs in parallel, at most one per core."""


def run_programs(programs: Sequence[str], limits: Limits | None = None) -> list[str]:
    """Execute Python sources, each in its own sandbox. Returns their outcomes in order.

    "passed" after running to the end; "timed out: <which time>"; or "failed: " with the exception's type, or how the
    process ended. Raises TaskError, before any execution, if no sandbox works on this machine.
    """
    cage, limits = require_cage(), limits or Limits()
    with ThreadPoolExecutor(min(WORKERS, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(lambda program: cage.run(program, limits), programs))


@lru_cache(maxsize=1)
def require_cage() -> Cage:
    """The first sandbox that enforces all limits here. Raises TaskError naming limits that are not enforced."""
    reasons = []
    for cage in candidates():
        try:
            broken = broken_promises(cage)
        except (ResultsError, OSError) as error:
            broken = [str(error)]
        if not broken:
            return cage
        reasons.append(f"{cage.name}: {'; '.join(broken)}")
    raise TaskError(
        "Programs that a model wrote cannot be confined on this machine, so none is executed.\n"
        + "\n".join(reasons)
        + "\nInstalling bubblewrap (bwrap) may help; predict_only=true logs the answers without executing them."
    )
