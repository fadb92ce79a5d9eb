"""How much work runs are, before any weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moe_lab.tasks.estimate import Asked, asked_of_tasks

if TYPE_CHECKING:
    from moe_lab.runs.run import Run


def estimates(runs: Sequence[Run]) -> list[Asked]:
    """What every run asks; runs that ask the same of a model, as those of a grid do, are looked at once."""
    known: dict[tuple[Any, ...], Asked] = {}
    found = []
    for run in runs:
        config = run.config
        framed = (config.fewshot_seed, config.system_instruction, config.offline)
        key = (id(run.tasks), str(run.samples), repr(config.model), *framed)
        if key not in known:
            known[key] = asked_by(run)
        found.append(known[key])
    return found


def asked_by(run: Run) -> Asked:
    """What a run asks of its model."""
    return asked_of_tasks(run.tasks["tasks"], run.samples, run.config)
