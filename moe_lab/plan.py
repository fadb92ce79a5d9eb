"""mode=plan: what would run, what is stored, and how much work is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from moe_lab.reports.terminal import print_table

if TYPE_CHECKING:
    from moe_lab.run import Run


def print_plan(runs: Sequence[Run]) -> None:
    """Print one row per run, baselines included, and the sum of what is missing. Loads no weights."""
    from moe_lab.run import estimate_forward_tokens

    table = Table(
        "run", "model", "method", "task", "seed", "documents", "forward tokens (estimated)", "state"
    )
    missing = total = 0
    for run in with_baselines(runs):
        tokens = estimate_forward_tokens(run)
        missing += not run.done
        total += 0 if run.done else tokens
        config = run.config
        state = "done" if run.done else "missing"
        cells = (run.run_id[:8], config.model.name, config.method.name, task_name(run), config.seed)
        table.add_row(*map(str, cells), f"{run.num_documents:,}", f"{tokens:,}", state)
    print_table(table)
    print(f"To run: {missing}, about {total:,} forward tokens.")


def with_baselines(runs: Sequence[Run]) -> list[Run]:
    """The runs, each after its baseline, none twice."""
    ordered: dict[str, Run] = {}
    for run in runs:
        if run.baseline is not None:
            ordered.setdefault(run.baseline.run_id, run.baseline)
        ordered.setdefault(run.run_id, run)
    return list(ordered.values())


def task_name(run: Run) -> str:
    """The task's name, or its tasks' names joined by commas."""
    name = run.config.task.name
    return name if isinstance(name, str) else ",".join(name)
