"""Executes the runs and studies of a command one after the other, shared with other processes.

Several identical commands may run at once. Each skips runs that another one holds a lock on, and comes back to them
when nothing else is left. It takes over the runs of a command that has died. The workers of `launcher=` are such
commands; they only write no tables.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import print_message
from moe_lab.errors import MoeLabError, RunHeldError
from moe_lab.models.memory import ModelPool
from moe_lab.reports.figures import write_run_figures
from moe_lab.reports.loggers import open_logger
from moe_lab.results.folder import ATTEMPT, RunFolder, why_not_writable
from moe_lab.runs.jobs import Job, distinct_runs
from moe_lab.runs.run import Outcome, Run

WORKER = "MOE_LAB_WORKER"
"""Environment variable of workers."""
PAUSE = 1.0
"""Seconds between two attempts at runs that other processes hold."""


@dataclass(frozen=True)
class Failure:
    """A run or a study that ended without a result."""

    name: str
    run_id: str | None
    """None: a study."""
    error: BaseException


def is_worker() -> bool:
    """Whether this process is a worker. The command that started it writes the tables."""
    return WORKER in os.environ


@dataclass(frozen=True)
class Step:
    """A run of a job, or its trainings and studies."""

    job: Job
    run: Run | None = None
    """None: the trainings and studies."""

    @property
    def name(self) -> str:
        return self.job.name if self.run is None else self.run.folder.name

    @property
    def stored(self) -> bool:
        run = self.run
        return run is not None and run.done and run.measured and not run.config.rerun

    def failure(self) -> str | None:
        """Why it failed in another worker of the same command."""
        attempt = os.environ.get(ATTEMPT)
        folders = [self.run.folder] if self.run is not None else self.job.folders
        reasons = (RunFolder(folder, "").failure(attempt) for folder in folders if attempt)
        return next(filter(None, reasons), None)

    def check_free(self, before: RunHeldError | None) -> None:
        """Raise RunHeldError if another process holds what it needs. `before`: the error of the last attempt, if any.

        That another process holds its training is found only when the run begins, which is announced and logged.
        """
        if (
            before is not None
            and before.folder is not None
            and RunFolder(before.folder, "").is_held()
        ):
            raise before
        if self.run is not None:
            self.run.check_free()

    def make(self, models: ModelPool) -> Outcome | None:
        """Compute the step. The results and figures of a run are sent to its logger, once."""
        from moe_lab.runs.execute import execute

        run = self.run
        if run is None:
            self.job.tune(models)
            return None
        # a run follows one study
        config = replace(run.config, tuning=replace(self.job.config.tuning, seeds=1))
        place: dict[str, Any] = {
            "name": run.folder.name,
            "group": self.job.group,
            "folder": run.folder,
        }
        with open_logger(config, kind="run", **place) as logger:
            outcome = execute(run, models, begin=logger.begin)
            figures: list[Path] = []
            if why_not_writable(run.config.output_dir) is None:  # else the result was stored
                figures = write_run_figures(outcome.results, run.method.figures)
            if not (outcome.stored and logger.logged):
                logger.log_results(outcome.results)
                for figure in figures:
                    logger.log_figure(figure)
        return outcome


def run_all(
    jobs: Sequence[Job], models: ModelPool, *, wait: bool = True
) -> tuple[list[Outcome], list[Failure]]:
    """Execute the jobs one after the other. A failure does not stop the others, an interruption does.

    A worker skips jobs whose time is measured. The command that started it runs them after the workers have ended.

    `wait`: whether to wait for runs that another process holds. If not, they fail with a RunHeldError.
    """
    queue: deque[Step] = deque()
    for job in jobs:
        if not (job.timed and is_worker()):  # before the runs are known, a step leads to them
            queue.extend([Step(job, run) for run in job.runs] or [Step(job)])
    total = len({step.name for step in queue}) + sum(
        step.job.coming for step in queue if step.run is None
    )
    outcomes: dict[str, Outcome] = {}
    failures: dict[str, Failure] = {}
    announced: dict[str, None] = {}
    blocked: dict[str, RunHeldError] = {}
    held, waiting = 0, ""
    while queue:
        step = queue.popleft()
        run, stored = step.run, step.stored
        failed = None if stored else step.failure()
        made = run is not None and run.run_id in outcomes and run.measured
        if made or step.name in failures or (is_worker() and (stored or failed)):
            continue
        try:
            if failed:
                raise MoeLabError(failed)
            step.check_free(blocked.get(step.name))
            if total > 1 and step.name not in announced:
                announced[step.name] = None
                print_message(f"[{len(announced)}/{total}] {step.name}")
            outcome = step.make(models)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, RunHeldError) and wait:
                blocked[step.name] = error
                queue.append(step)
                held += 1
                if held >= len(queue):  # other processes hold all remaining steps
                    if str(error) != waiting:
                        waiting = str(error)
                        print_message(f"Waiting: {waiting}")
                    time.sleep(PAUSE)
                    held = 0
                continue
            failures[step.name] = Failure(step.name, None if run is None else run.run_id, error)
            if isinstance(error, KeyboardInterrupt):
                break
        else:
            if outcome is not None:
                outcomes[outcome.run.run_id] = outcome
            else:
                queue.extendleft(Step(step.job, one) for one in reversed(step.job.runs))
        held = 0
    done = [outcomes[run.run_id] for run in distinct_runs(jobs) if run.run_id in outcomes]
    return done, [failure for failure in failures.values() if failure.run_id not in outcomes]
