"""Executes the runs and studies of a command one after the other, shared with other processes."""

import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from moe_lab.config.progress import duration
from moe_lab.errors import MoeLabError, RunHeldError
from moe_lab.models.memory import ModelPool
from moe_lab.reports.figures import write_run_figures
from moe_lab.reports.loggers import open_logger
from moe_lab.results.folder import ATTEMPT, RunFolder
from moe_lab.runs import STARTER
from moe_lab.runs.jobs import Job, distinct_runs
from moe_lab.runs.run import Outcome, Run

# Executes jobs one after the other. A failure is recorded and the other jobs still run
#
# Several identical commands may run at once. Each skips runs that another one holds a lock on, and comes back to them
# when nothing else is left. It takes over the runs of a command that has died. The workers of `launcher=` are such
# commands; they only write no tables.

PAUSE = 1.0
"""Seconds between two attempts at runs that other processes hold, and between two looks at workers."""


@dataclass(frozen=True)
class Failure:
    """A run or a study that ended without a result."""

    name: str
    run_id: str | None
    """None: a study."""
    error: BaseException


def is_worker() -> bool:
    """Whether this process is a worker. The command that started it writes the tables."""
    return STARTER in os.environ


def run_all(
    jobs: Sequence[Job], models: ModelPool, *, wait: bool = True
) -> tuple[list[Outcome], list[Failure]]:
    """Execute the jobs one after the other. A failure does not stop the others, an interruption does.

    Args:
        wait: whether to wait for runs that another process holds. If not, they fail with a RunHeldError.
    """
    attempts = _Attempts(jobs, models, wait)
    with suppress(KeyboardInterrupt):  # it is among the failures
        attempts.make_all()
    outcomes = attempts.outcomes
    failures = [failure for failure in attempts.failures if failure.run_id not in outcomes]
    return [outcomes[run.run_id] for run in distinct_runs(jobs) if run.run_id in outcomes], failures


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

    def make(self, models: ModelPool) -> Outcome | None:
        """Compute the step. The results and figures of a run are sent to its logger, once."""
        from moe_lab.runs.execute import execute

        run = self.run
        if run is None:
            self.job.tune(models)
            return None
        config = replace(
            run.config, tuning=replace(self.job.config.tuning, seeds=1)
        )  # a run follows one study
        place: dict[str, Any] = {"name": run.folder.name, "group": self.job.group, "folder": run.folder}
        with open_logger(config, kind="run", **place) as logger:
            outcome = execute(run, models, begin=logger.begin)
            figures = write_run_figures(outcome.results, run.method.figures)
            if not (outcome.stored and logger.logged):
                logger.log_results(outcome.results)
                for figure in figures:
                    logger.log_figure(figure)
        return outcome


def steps_of(job: Job) -> list[Step]:
    """The runs of a job; before they are known, the step that leads to them."""
    return [Step(job, run) for run in job.runs] or [Step(job)]


class _Attempts:
    """The steps of jobs. Announces each step on stderr with the time left, and records failures.

    A worker skips jobs whose time is measured. The command that started it runs them after the workers have ended.
    """

    def __init__(self, jobs: Sequence[Job], models: ModelPool, wait: bool):
        self.models, self.wait = models, wait
        self.outcomes: dict[str, Outcome] = {}
        self.failures: list[Failure] = []
        jobs = [job for job in jobs if not (job.timed and is_worker())]
        self._queue = deque(step for job in jobs for step in steps_of(job))
        tuned = sum(job.coming for job in jobs if not job.runs)
        self._total = len({step.name for step in self._queue}) + tuned
        self._left = self._total - len({step.name for step in self._queue if step.stored})
        self._seconds: list[float] = []
        """Of each run that this process has made."""
        self._announced: set[str] = set()
        self._blocked: dict[str, RunHeldError] = {}

    def make_all(self) -> None:
        """Make every step. Steps that another process holds are tried again after the others."""
        held, waiting = 0, ""
        while self._queue:
            step = self._queue.popleft()
            try:
                self._make(step)
                held = 0
            except RunHeldError as error:
                if not self.wait:
                    self._fail(step, error)
                    continue
                self._blocked[step.name] = error
                self._queue.append(step)
                held += 1
                if held >= len(self._queue):  # other processes hold all remaining steps
                    if str(error) != waiting:
                        waiting = str(error)
                        print(f"Waiting: {waiting}", file=sys.stderr)
                    time.sleep(PAUSE)
                    held = 0

    def _make(self, step: Step) -> None:
        run, stored = step.run, step.stored
        if run is not None and run.run_id in self.outcomes and run.measured:
            return
        if (stored and is_worker()) or step.name in {failure.name for failure in self.failures}:
            return
        if not stored and (reason := step.failure()) is not None:
            if not is_worker():
                self._fail(step, MoeLabError(reason))
            return
        blocked = self._blocked.get(step.name)  # by a training, say, which is found only when a run begins
        if blocked is not None and blocked.folder is not None and RunFolder(blocked.folder, "").is_held():
            raise blocked
        if run is not None:
            run.check_free()
        self._announce(step)
        start = time.monotonic()
        try:
            outcome = step.make(self.models)
        except RunHeldError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            self._fail(step, error)
            if isinstance(error, KeyboardInterrupt):
                raise
            return
        self._left -= not stored
        if outcome is not None:
            self.outcomes[outcome.run.run_id] = outcome
            self._seconds += [] if stored else [time.monotonic() - start]
        elif step.job.runs:
            self._queue.extendleft(reversed(steps_of(step.job)))

    def _fail(self, step: Step, error: BaseException) -> None:
        self._left -= not step.stored
        self.failures.append(Failure(step.name, step.run.run_id if step.run else None, error))

    def _announce(self, step: Step) -> None:
        if self._total < 2 or step.name in self._announced:
            return
        self._announced.add(step.name)
        known = self._seconds and all(one.run is not None for one in (step, *self._queue))
        note = f", about {duration(mean(self._seconds) * self._left)} left" if known else ""
        print(f"[{len(self._announced)}/{self._total}] {step.name}{note}", file=sys.stderr)
