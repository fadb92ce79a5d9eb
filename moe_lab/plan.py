"""mode=plan: what would run, what is stored, and how much work is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from moe_lab.config import Config
from moe_lab.reports.terminal import print_table

if TYPE_CHECKING:
    from moe_lab.run import Run

Refused = Mapping[str, Sequence[Config]]
"""Why runs cannot be prepared, with those that each reason holds for."""


def print_plan(runs: Sequence[Run], refused: Refused | None = None) -> None:
    """Print one row per run, baselines included, and the sum of what is missing. Loads no weights."""
    from moe_lab.run import estimate_forward_tokens

    refused = refused or {}
    table = Table(
        "run", "model", "method", "task", "seed", "documents", "forward tokens (estimated)", "state"
    )
    missing = total = 0
    for run in with_baselines(runs):
        done, tokens = run.done and not run.config.rerun, estimate_forward_tokens(run)
        missing += not done
        total += 0 if done else tokens
        state = "done" if done else "missing"
        table.add_row(run.run_id[:8], *_names(run.config), f"{run.num_documents:,}", f"{tokens:,}", state)
    for number, configs in enumerate(refused.values(), start=1):
        for config in configs:
            table.add_row("-", *_names(config), "-", "-", f"cannot run ({number})")
    print_table(table)
    print(f"To run: {missing}, about {total:,} forward tokens.")
    for number, reason in enumerate(refused, start=1):
        print(f"({number}) {reason}")


def with_baselines(runs: Sequence[Run]) -> list[Run]:
    """The runs, each after its baseline, none twice."""
    ordered: dict[str, Run] = {}
    for run in runs:
        if run.baseline is not None:
            ordered.setdefault(run.baseline.run_id, run.baseline)
        ordered.setdefault(run.run_id, run)
    return list(ordered.values())


def task_name(config: Config) -> str:
    """The task's name, or its tasks' names joined by commas."""
    name = config.task.name
    return name if isinstance(name, str) else ",".join(name)


def _names(config: Config) -> tuple[str, str, str, str]:
    return config.model.name, config.method.name, task_name(config), str(config.seed)
