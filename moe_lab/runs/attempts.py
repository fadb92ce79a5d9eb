"""Executes jobs one after the other. A failure is recorded and the other jobs still run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from moe_lab.errors import RunHeldError, exit_code, print_error
from moe_lab.runs.jobs import Job, distinct_runs

if TYPE_CHECKING:
    from moe_lab.models.pool import ModelPool
    from moe_lab.runs.run import Outcome, Run


@dataclass(frozen=True)
class Failure:
    """A run or a study that ended without a result."""

    name: str
    run_id: str | None
    """None: a study."""
    error: BaseException


def run_all(jobs: Sequence[Job], models: ModelPool) -> tuple[list[Outcome], list[Failure]]:
    """Execute the jobs one after the other. A failure does not stop the others, an interruption does."""
    outcomes: dict[str, Outcome] = {}
    attempts = _Attempts(jobs)
    with suppress(KeyboardInterrupt):  # it is among the failures
        for job in jobs:
            if job.studies and not job.runs:
                attempts.make(job.name, None, partial(job.tune, models))
            for run in job.runs:
                if run.run_id in outcomes and run.measured:
                    continue
                outcome = attempts.make(
                    run.folder.name, run.run_id, partial(execute_logged, run, models, job.group)
                )
                if outcome is not None:
                    outcomes[run.run_id] = outcome
    runs = distinct_runs(jobs)
    for run in runs:  # a run that another process held may be finished by now
        if run.run_id in attempts.held and run.done:
            outcomes[run.run_id] = execute_logged(run, models, None)
    failures = [failure for failure in attempts.failures if failure.run_id not in outcomes]
    return [outcomes[run.run_id] for run in runs if run.run_id in outcomes], failures


class _Attempts:
    """The steps of jobs: announces each one on stderr and records its failure."""

    def __init__(self, jobs: Sequence[Job]):
        studies = sum(bool(job.studies) and not job.runs for job in jobs)
        self.total = studies + sum(len(job.runs) or job.config.num_seeds for job in jobs)
        self.begun = 0
        self.failures: list[Failure] = []

    @property
    def held(self) -> set[str]:
        """The ids of runs that another process held."""
        return {f.run_id for f in self.failures if f.run_id and isinstance(f.error, RunHeldError)}

    def make(self, name: str, run_id: str | None, action: Callable[[], Any]) -> Any:
        """The action's result, or None if it failed. An interruption is recorded and raised."""
        self.begun += 1
        if self.total > 1:
            print(f"[{self.begun}/{self.total}] {name}", file=sys.stderr)
        try:
            return action()
        except KeyboardInterrupt as stop:
            self.failures.append(Failure(name, run_id, stop))
            raise
        except Exception as error:
            self.failures.append(Failure(name, run_id, error))
            return None


def execute_logged(run: Run, models: ModelPool, group: str | None) -> Outcome:
    """`moe_lab.runs.execute.execute`, with the results and figures sent to the run's logger."""
    from moe_lab.reports.figures import write_run_figures
    from moe_lab.reports.loggers import open_logger
    from moe_lab.runs.execute import execute

    with open_logger(run.config, kind="run", name=run.folder.name, group=group) as logger:
        outcome = execute(run, models)
        logger.log_results(outcome.results, run.folder)
        for figure in write_run_figures(run.folder, outcome.results):
            logger.log_figure(figure)
    return outcome


def report_failures(failures: Sequence[Failure], alone: bool) -> None:
    """Print the failures on stderr; in a grid, with the name of each run."""
    for failure in failures:
        if not alone:
            print(f"{failure.name}:", file=sys.stderr)
        if isinstance(failure.error, KeyboardInterrupt):
            print("Interrupted. The same command continues where this one stopped.", file=sys.stderr)
        else:
            print_error(failure.error)


def grid_exit_code(errors: Sequence[BaseException]) -> int:
    """130 or 143 if interrupted, else 1 if a run failed, else 3 if one was held, else 0."""
    for error in errors:
        if isinstance(error, KeyboardInterrupt):
            return exit_code(error)
    if any(not isinstance(error, RunHeldError) for error in errors):
        return 1
    return RunHeldError.exit_code if errors else 0
