"""One run or many: everything is checked first, each model is loaded once, and one table ends it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from moe_lab.config import Config
from moe_lab.errors import ConfigError, RunHeldError
from moe_lab.exits import exit_code, print_error
from moe_lab.methods import get_method

if TYPE_CHECKING:
    from moe_lab.run import ModelPool, Outcome, Run


@dataclass(frozen=True)
class Failure:
    """A run that ended without a result."""

    run: Run
    error: BaseException


def run_grid(configs: Sequence[Config]) -> int:
    """Run every config and print one table. Returns the exit code."""
    from moe_lab.reports.terminal import print_outcomes, print_summaries
    from moe_lab.results.summaries import summarize
    from moe_lab.run import ModelPool

    if any(get_method(config.method.name).trains for config in configs):
        return train(configs)
    runs = check_all(configs)
    outcomes, failures = run_all(runs, ModelPool())
    if outcomes:
        print_outcomes(beside_baselines(outcomes))
    report_failures(failures, alone=len(runs) == 1)
    if any(config.seeds > 1 for config in configs):
        print_summaries(summarize(outcomes))
    for outcome in outcomes:
        print(outcome.path)
    errors = [failure.error for failure in failures]
    return exit_code(errors[0]) if errors and len(runs) == 1 else grid_exit_code(errors)


def plan_grid(configs: Sequence[Config]) -> int:
    """Print what would run; loads no weights and writes nothing."""
    from moe_lab.plan import print_plan

    print_plan(check_all(configs))
    return 0


def report_grid(configs: Sequence[Config]) -> int:
    """Print the table of what is stored. Raises ConfigError where nothing is."""
    from moe_lab.reports.terminal import print_outcomes
    from moe_lab.run import ModelPool, execute

    runs = check_all([replace(config, rerun=False) for config in configs])
    stored = [run for run in runs if run.done]
    missing = [run for run in runs if not run.done]
    if not stored:
        raise ConfigError("Nothing of this is stored yet. The same command with mode=run makes it.")
    outcomes = [execute(run, ModelPool()) for run in stored]
    print_outcomes(beside_baselines(outcomes))
    for run in missing:
        print(f"Not stored yet: {run.folder}", file=sys.stderr)
    for outcome in outcomes:
        print(outcome.path)
    return 0


def check_all(configs: Sequence[Config]) -> list[Run]:
    """Every run, checked as far as it can be without weights; one model's runs stand together, none twice."""
    from moe_lab.run import prepare

    for config in configs:
        if get_method(config.method.name).trains:
            raise ConfigError(f"method={config.method.name} trains: it has mode=run only.")
    runs = {run.run_id: run for config in configs for run in map(prepare, seeds_of(config))}
    return by_model(list(runs.values()))


def seeds_of(config: Config) -> list[Config]:
    """One config per seed; only one for a method without randomness."""
    count = config.seeds if get_method(config.method.name).random else 1
    return [replace(config, seed=config.seed + index) for index in range(count)]


def by_model(runs: list[Run]) -> list[Run]:
    """The same runs, ordered so that a model once left does not come again."""
    models = [repr((asdict(run.config.model), run.config.dtype, run.config.device)) for run in runs]
    order = sorted(range(len(runs)), key=lambda index: models.index(models[index]))
    return [runs[index] for index in order]


def run_all(runs: Sequence[Run], models: ModelPool) -> tuple[list[Outcome], list[Failure]]:
    """Run one after the other; a failed run does not stop the others, an interruption does."""
    from moe_lab.run import execute

    outcomes: list[Outcome] = []
    failures: list[Failure] = []
    for number, run in enumerate(runs, start=1):
        if len(runs) > 1:
            print(f"[{number}/{len(runs)}] {run.folder.name}", file=sys.stderr)
        try:
            outcomes.append(execute(run, models))
        except KeyboardInterrupt as stop:
            failures.append(Failure(run, stop))
            break
        except Exception as error:
            failures.append(Failure(run, error))
    return outcomes, failures


def beside_baselines(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The results in their order, each after that of its untouched model, none twice."""
    ordered: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        base = outcome.run.baseline
        stored = None if base is None else base.stored()
        if base is not None and stored is not None:
            ordered.setdefault(base.run_id, stored)
        ordered.setdefault(outcome.run.run_id, outcome.results)
    return list(ordered.values())


def report_failures(failures: Sequence[Failure], alone: bool) -> None:
    """Say on stderr what failed; in a grid, with the name of the run."""
    for failure in failures:
        if not alone:
            print(f"{failure.run.folder.name}:", file=sys.stderr)
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
        if not get_method(config.method.name).trains:
            raise ConfigError(
                f"method={config.method.name} evaluates and others of this grid train. Train first."
            )
    for config in (one for each in configs for one in seeds_of(each)):
        print(get_method(config.method.name)(config.method).train(config))
    return 0
