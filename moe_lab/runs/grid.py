"""One run or many: everything is checked first, each model is loaded once, and one table ends it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, RunHeldError, exit_code, print_error
from moe_lab.methods import get_method
from moe_lab.methods.training_method import ModelMaker
from moe_lab.runs.jobs import Job, distinct_runs, jobs_of, repeated_studies, seeds_of

if TYPE_CHECKING:
    from moe_lab.models.pool import ModelPool
    from moe_lab.runs.run import Outcome, Run

NOTHING_STORED = "Nothing of this is stored yet. The same command with mode=run makes it."


@dataclass(frozen=True)
class Failure:
    """A run or a study that ended without a result."""

    name: str
    run_id: str | None
    """None: a study."""
    error: BaseException


def run_grid(configs: Sequence[Config]) -> int:
    """Run every config and print one table. Returns the exit code."""
    from moe_lab.models.pool import ModelPool
    from moe_lab.reports.terminal.results import print_outcomes
    from moe_lab.reports.terminal.seeds import print_summaries
    from moe_lab.reports.terminal.study import print_studies
    from moe_lab.runs.summaries import summarize

    if any(issubclass(get_method(config.method.name), ModelMaker) for config in configs):
        return train(configs)
    jobs = jobs_of(configs)
    outcomes, failures = run_all(jobs, ModelPool())
    print_studies([study.folder for job in jobs for study in job.studies])
    if outcomes:
        print_outcomes(beside_baselines(outcomes))
        print_metrics(outcomes)
    alone = len(jobs) == 1 and len(jobs[0].runs) < 2
    report_failures(failures, alone)
    if any(config.num_seeds > 1 for config in configs):
        print_summaries(summarize(outcomes, repeated_studies(jobs)))
    for outcome in outcomes:
        print(outcome.path)
    errors = [failure.error for failure in failures]
    return exit_code(errors[0]) if errors and alone else grid_exit_code(errors)


def plan_grid(configs: Sequence[Config]) -> int:
    """Print what would run; loads no weights and writes nothing."""
    from moe_lab.runs.plan import print_plan

    print_plan(jobs_of(configs))
    return 0


def report_grid(configs: Sequence[Config]) -> int:
    """Print the table of what is stored. Raises ConfigError where nothing is."""
    from moe_lab.models.pool import ModelPool
    from moe_lab.reports.terminal.results import print_outcomes
    from moe_lab.reports.terminal.seeds import print_summaries
    from moe_lab.runs.execute import execute
    from moe_lab.runs.summaries import summarize

    jobs = jobs_of([replace(config, rerun=False) for config in configs])
    runs = distinct_runs(jobs)
    stored = [run for run in runs if run.done]
    missing = [job.name for job in jobs if not job.runs] + [str(run.folder) for run in runs if not run.done]
    if not stored:
        raise ConfigError(NOTHING_STORED)
    outcomes = [execute(run, ModelPool()) for run in stored]
    print_outcomes(beside_baselines(outcomes))
    print_metrics(outcomes)
    if any(config.num_seeds > 1 for config in configs):
        print_summaries(summarize(outcomes, repeated_studies(jobs)))
    for name in missing:
        print(f"Not stored yet: {name}", file=sys.stderr)
    for outcome in outcomes:
        print(outcome.path)
    return 0


def run_all(jobs: Sequence[Job], models: ModelPool) -> tuple[list[Outcome], list[Failure]]:
    """Run one after the other; what fails does not stop the others, an interruption does."""
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
    for run in runs:  # what another process held may be finished by now
        if run.run_id in attempts.held and run.done:
            outcomes[run.run_id] = execute_logged(run, models, None)
    failures = [failure for failure in attempts.failures if failure.run_id not in outcomes]
    return [outcomes[run.run_id] for run in runs if run.run_id in outcomes], failures


class _Attempts:
    """What is tried of some jobs, step by step: each announced, and noted where it fails."""

    def __init__(self, jobs: Sequence[Job]):
        studies = sum(bool(job.studies) and not job.runs for job in jobs)
        self.total = studies + sum(len(job.runs) or job.config.num_seeds for job in jobs)
        self.begun = 0
        self.failures: list[Failure] = []

    @property
    def held(self) -> set[str]:
        """Runs that another process worked on."""
        return {f.run_id for f in self.failures if f.run_id and isinstance(f.error, RunHeldError)}

    def make(self, name: str, run_id: str | None, action: Callable[[], Any]) -> Any:
        """The action's result, or None where it failed. An interruption is noted and raised."""
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
    """`moe_lab.runs.execute.execute`, its results and figures given to the run's logger."""
    from moe_lab.reports.figures import write_run_figures
    from moe_lab.reports.loggers import open_logger
    from moe_lab.runs.execute import execute

    with open_logger(run.config, kind="run", name=run.folder.name, group=group) as logger:
        outcome = execute(run, models)
        logger.log_results(outcome.results, run.folder)
        for figure in write_run_figures(run.folder, outcome.results):
            logger.log_figure(figure)
    return outcome


def beside_baselines(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The results in their order, each after those that it is compared with, none twice."""
    ordered: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        for other in outcome.run.needed.values():
            if (stored := other.stored()) is not None:
                ordered.setdefault(other.run_id, stored)
        ordered.setdefault(outcome.run.run_id, outcome.results)
    return list(ordered.values())


def print_metrics(outcomes: Sequence[Outcome]) -> None:
    """Print the expert metrics of the runs that ask for them, each after those that it is compared with."""
    from moe_lab.reports.terminal.expert_metrics import print_expert_metrics

    wanted = [one for one in outcomes if one.run.config.metrics == "expert"]
    runs = [run for one in wanted for run in (*one.run.needed.values(), one.run)]
    folders = {run.run_id: run.folder for run in runs}
    print_expert_metrics(
        [(results, folders[results["moe_lab"]["run_id"]]) for results in beside_baselines(wanted)]
    )


def report_failures(failures: Sequence[Failure], alone: bool) -> None:
    """Say on stderr what failed; in a grid, with the name of the run."""
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


def train(configs: Sequence[Config]) -> int:
    """Run methods that train; each ends with the path of its model."""
    for config in configs:
        if not issubclass(get_method(config.method.name), ModelMaker):
            raise ConfigError(
                f"method={config.method.name} evaluates and others of this grid train. Train first."
            )
    for config in (one for each in configs for one in seeds_of(each)):
        maker = get_method(config.method.name)(config.method)
        assert isinstance(maker, ModelMaker)
        print(maker.train(config))
    return 0
