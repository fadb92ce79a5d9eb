"""Executing many programs: the cage is probed once per process, then programs run side by side."""

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
"""Programs at a time, at most one per core."""


def run_programs(programs: Sequence[str], limits: Limits | None = None) -> list[str]:
    """Execute Python sources, each in a cage of its own, and say of each what came of it, in their order.

    "passed" where a source ran to its end; "timed out: " and of what; or "failed: " with the type of what it raised,
    or how it ended. Raises TaskError where no cage can be built on this machine; nothing is executed then.
    """
    cage, limits = require_cage(), limits or Limits()
    with ThreadPoolExecutor(min(WORKERS, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(lambda program: cage.run(program, limits), programs))


@lru_cache(maxsize=1)
def require_cage() -> Cage:
    """The first cage that keeps every promise on this machine. Raises TaskError saying which ones none keeps."""
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
