"""What a command would run, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moe_lab.api.run import composed
from moe_lab.api.shown import Shown
from moe_lab.config.terminal import shown_output
from moe_lab.errors import ConfigError
from moe_lab.reports.columns import Column
from moe_lab.reports.frames import settings_of, with_counts
from moe_lab.runs.config import function_of, to_configs
from moe_lab.runs.plan import Plan
from moe_lab.tasks.loading import task_cache

if TYPE_CHECKING:
    import pandas as pd


class PlannedRuns(Shown):
    """The runs and studies of a command, and what is left of them.

    `notes` has the sums, and why configurations cannot run, a sentence each.
    """

    def __init__(self, plan: Plan):
        self._plan = plan
        self.notes = plan.notes

    def __len__(self) -> int:
        return len(self._plan.rows)

    def frame(self) -> pd.DataFrame:
        """One row per run and study, those that others are compared with included.

        Columns: `run` (the first 8 digits of its id; missing before it has one), `model`, `weights` (`model.path`),
        `method`, `task`, `seed` (as text: a tuned run has several), the settings that differ, `examples`, `tokens`
        (estimated forward tokens that are left), `hours_here` (at the speed of a stored run or a pilot), `gpu_memory`
        (planned bytes; missing for embedded models), `state` ("done", "missing", ...). What is not known before a study
        or a training is missing.
        """
        import pandas as pd

        rows = []
        configs = [row.config for row in self._plan.rows]
        settings = settings_of(configs, configs)
        for own in settings:
            own.pop("baseline", None)  # false of the runs that others are compared with
        for row, own in zip(self._plan.rows, settings, strict=True):
            model, method, task, seed = row.names
            rows.append(
                {
                    "run": None if row.run == "-" else row.run,
                    "model": model,
                    "weights": row.config.model.path,
                    "method": method,
                    "task": task,
                    "seed": None if seed == "-" else seed,
                    **own,
                    "examples": row.documents,
                    "tokens": row.tokens,
                    "hours_here": row.hours,
                    "gpu_memory": row.memory,
                    "state": row.state,
                }
            )
        frame = with_counts(pd.DataFrame(rows), settings)
        return frame.astype(
            dict.fromkeys(("examples", "tokens", "gpu_memory"), "Int64") | {"hours_here": "float64"}
        )

    def _columns(self) -> tuple[list[Column], list[str]]:
        return self._plan.columns(), self.notes


def plan(overrides: Sequence[str]) -> PlannedRuns:
    """What a command would run: `moe_lab.plan(["-m", "method=base,roe", "task=toy_math", "seeds=5"])`.

    It is `mode=plan` of the command: everything is checked that can be checked without weights, nothing is computed,
    written or printed, except for pilots (`pilot=8`).

    Args:
        overrides: those of `python -m moe_lab`, with "-m" for a grid, or with `experiment=`.

    Returns a table of the runs: `frame()`, and `notes` with the sums.

    Raises ConfigError for what the command refuses.
    """
    cells = composed("plan", overrides)
    with task_cache(), shown_output(quiet=True):
        configs = to_configs(cells)
        if any(config.mode not in ("run", "plan") for config in configs):
            raise ConfigError(f"mode={configs[0].mode}: moe_lab.plan plans runs. Leave mode= out.")
        return PlannedRuns(function_of("plan", configs, cells, overrides)())
