"""How much work runs are, estimated without weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moe_lab.tasks.estimate import Workload, workload_of_tasks

if TYPE_CHECKING:
    from moe_lab.runs.run import Run


def estimates(runs: Sequence[Run]) -> list[Workload]:
    """The workload of every run. Runs with the same requests to the same model, as in a grid, are estimated once."""
    known: dict[tuple[Any, ...], Workload] = {}
    workloads = []
    for run in runs:
        config = run.config
        prompt_settings = (config.fewshot_seed, config.system_instruction, config.offline)
        key = (id(run.tasks), str(run.samples), repr(config.model), *prompt_settings)
        if key not in known:
            known[key] = workload_of(run)
        workloads.append(known[key])
    return workloads


def workload_of(run: Run) -> Workload:
    """The workload of a run without its baseline."""
    return workload_of_tasks(run.tasks["tasks"], run.samples, run.config)
