"""Executes the runs and studies of a command one after the other, shared with other processes.

Several identical commands may run at once. Each skips runs that another one holds a lock on, and
comes back to them when nothing else is left. It takes over the runs of a command that has died. The
workers of `launcher=` are such commands; they only write no tables.
"""

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

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


class Step(ABC):
    """What is computed of a job in one attempt."""

    run_id: str | None = None
    """None: of trainings and studies."""

    def __init__(self, job: Job):
        self.job = job

    @property
    @abstractmethod
    def name(self) -> str:
        """Used in messages; a step is attempted again under the same name."""

    @property
    @abstractmethod
    def folders(self) -> list[Path]:
        """Folders whose status.json may say that it failed."""

    def is_stored(self) -> bool:
        """Whether nothing is left to compute."""
        return False

    def check_free(self) -> None:
        """Raise RunHeldError if another process is known to hold what it needs."""

    @abstractmethod
    def make(self, models: ModelPool) -> Outcome | None:
        """Compute it. Returns the result of a run; None for trainings and studies."""

    def failure(self) -> str | None:
        """Why it failed in another worker of the same command; None if it did not, or is stored."""
        attempt = os.environ.get(ATTEMPT)
        if attempt is None or self.is_stored():
            return None
        for folder in self.folders:
            reason = RunFolder(folder, "").failure(attempt)
            if reason:
                return reason
        return None


class Preparation(Step):
    """The trainings and studies of a job, after which its runs are known.

    If another process holds a training, `make` raises RunHeldError; nothing tells it before.
    """

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def folders(self) -> list[Path]:
        return self.job.folders

    def make(self, models: ModelPool) -> None:
        self.job.make_ready(models)


class RunStep(Step):
    """A run of a job."""

    def __init__(self, job: Job, run: Run):
        super().__init__(job)
        self.run = run
        self.run_id = run.run_id

    @property
    def name(self) -> str:
        return self.run.folder.name

    @property
    def folders(self) -> list[Path]:
        return [self.run.folder]

    def is_stored(self) -> bool:
        """Whether the result is stored with its metrics, and no rerun is wanted."""
        return self.run.done and self.run.measured and not self.run.config.rerun

    def check_free(self) -> None:
        self.run.check_free()

    def make(self, models: ModelPool) -> Outcome:
        """Execute the run. Its results and figures are sent to its logger, once."""
        from moe_lab.runs.execute import execute

        run = self.run
        tuning = replace(self.job.config.tuning, seeds=1)  # a run follows one study
        with open_logger(
            replace(run.config, tuning=tuning),
            kind="run",
            name=run.folder.name,
            group=self.job.group,
            folder=run.folder,
        ) as logger:
            outcome = execute(run, models, begin=logger.begin)
            figures: list[Path] = []
            if why_not_writable(run.config.output_dir) is None:  # else the result was stored
                figures = write_run_figures(outcome.results, run.method.figures)
            if not (outcome.stored and logger.logged):
                logger.log_results(outcome.results)
                for figure in figures:
                    logger.log_figure(figure)
        return outcome


class Queue:
    """The steps of some jobs that are left to attempt, and the results of the others."""

    def __init__(self, jobs: Sequence[Job], models: ModelPool, *, wait: bool):
        self.models = models
        self.wait = wait
        self.steps: deque[Step] = deque()
        self.outcomes: dict[str, Outcome] = {}
        """By run id."""
        self.failures: dict[str, Failure] = {}
        """By name of the step."""
        self._announced: set[str] = set()
        """Names of steps."""
        self._held: dict[str, RunHeldError] = {}
        """The errors of postponed steps, by name."""
        self._postponed = 0
        """The number of steps that were postponed since one was made or failed."""
        self._waiting = ""
        """The last message about a step that is waited for."""
        runs_to_come = 0
        for job in jobs:
            if job.timed and is_worker():
                continue
            if job.runs:
                self.steps.extend(RunStep(job, run) for run in job.runs)
            else:
                self.steps.append(Preparation(job))
                runs_to_come += job.coming
        self._total = len({step.name for step in self.steps}) + runs_to_come

    def attempt_next(self) -> None:
        """Attempt the first step.

        It is removed, unless another process holds it: then it is put last.
        """
        step = self.steps.popleft()
        failure = step.failure()
        if self._is_settled(step, failure):
            return
        try:
            if failure is not None:
                raise MoeLabError(failure)
            self._check_free(step)
            self._announce(step)
            outcome = step.make(self.models)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, RunHeldError) and self.wait:
                self._postpone(step, error)
            else:
                self._fail(step, error)
        else:
            self._finish(step, outcome)

    def _is_settled(self, step: Step, failure: str | None) -> bool:
        """Whether the step has ended, in this process or, for a worker, in another one."""
        if step.name in self.failures:
            return True
        if isinstance(step, RunStep) and step.run_id in self.outcomes and step.run.measured:
            return True
        return is_worker() and (failure is not None or step.is_stored())

    def _check_free(self, step: Step) -> None:
        """Raise RunHeldError if another process holds what the step needs.

        That may also be what it needed in its last attempt.
        """
        held = self._held.get(step.name)
        if held is not None and held.folder is not None and RunFolder(held.folder, "").is_held():
            raise held
        step.check_free()

    def _announce(self, step: Step) -> None:
        """Print the name of a step of several, once."""
        if self._total > 1 and step.name not in self._announced:
            self._announced.add(step.name)
            print_message(f"[{len(self._announced)}/{self._total}] {step.name}")

    def _postpone(self, step: Step, error: RunHeldError) -> None:
        """Put the step last. If other processes hold all that are left, wait a moment."""
        self._held[step.name] = error
        self.steps.append(step)
        self._postponed += 1
        if self._postponed < len(self.steps):
            return
        if str(error) != self._waiting:
            self._waiting = str(error)
            print_message(f"Waiting: {self._waiting}")
        time.sleep(PAUSE)
        self._postponed = 0

    def _fail(self, step: Step, error: BaseException) -> None:
        """Keep the error. An interruption ends the queue."""
        self.failures[step.name] = Failure(step.name, step.run_id, error)
        self._postponed = 0
        if isinstance(error, KeyboardInterrupt):
            self.steps.clear()

    def _finish(self, step: Step, outcome: Outcome | None) -> None:
        """Keep the result of a run.

        The runs of a job whose trainings and studies are finished come next.
        """
        self._postponed = 0
        if outcome is not None:
            self.outcomes[outcome.run.run_id] = outcome
        else:
            self.steps.extendleft(RunStep(step.job, run) for run in reversed(step.job.runs))


class Executed(NamedTuple):
    """What came of some jobs."""

    outcomes: list[Outcome]
    """The results of their runs, each once, in the order of the jobs."""
    failures: list[Failure]
    """What ended without a result."""


def run_all(jobs: Sequence[Job], models: ModelPool, *, wait: bool = True) -> Executed:
    """Execute the jobs one after the other.

    A failure does not stop the others, an interruption does. A worker skips jobs whose time is
    measured. The command that started it runs them after the workers have ended.

    Args:
        wait: whether to wait for runs that another process holds. If not, they fail with a
            RunHeldError.
    """
    queue = Queue(jobs, models, wait=wait)
    while queue.steps:
        queue.attempt_next()
    outcomes = []
    for run in distinct_runs(jobs):
        if run.run_id in queue.outcomes:
            outcomes.append(queue.outcomes[run.run_id])
    failures = []
    for failure in queue.failures.values():
        if failure.run_id not in queue.outcomes:
            failures.append(failure)
    return Executed(outcomes, failures)
