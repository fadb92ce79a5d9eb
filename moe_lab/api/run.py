"""A command from Python: the same runs, files and numbers."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

from moe_lab.api.results import Results
from moe_lab.cli.main import compose_or_explain, dispatch
from moe_lab.config.arguments import wrong
from moe_lab.config.terminal import shown_output
from moe_lab.errors import INTERRUPTED, TERMINATED, ConfigError, ResultsError
from moe_lab.methods import get_method
from moe_lab.methods.method import ModelMaker
from moe_lab.progress import bars_of_libraries_hidden
from moe_lab.runs.config import to_configs
from moe_lab.runs.jobs import distinct_runs, jobs_of
from moe_lab.tasks.loading import task_cache

if TYPE_CHECKING:
    from moe_lab.config.compose import Cell
    from moe_lab.config.schema import Config


PRINTING = {"--help", "-h", "--hydra-help", "--version", "--info", "--cfg", "-c"}
"""Flags of the command."""


def run(overrides: Sequence[str], *, quiet: bool = False) -> Results:
    """Run a command and return its results: `moe_lab.run(["method=roe", "task=toy_math", "limit=50"])`.

    Args:
        overrides: those of `python -m moe_lab`, with "-m" for a grid. Files are written as there, and stored results
            are returned without computing.
        quiet: print nothing. By default tables, progress and errors are printed as by the command.

    Raises ConfigError for what the command refuses, for another mode than run and for `experiment=`, ResultsError where
    a run failed or is held by another process, and KeyboardInterrupt where it was interrupted.
    """
    cells = _composed(overrides)
    with task_cache(), shown_output(), bars_of_libraries_hidden(), _output(quiet) as errors:
        configs = to_configs(cells)
        for config in configs:
            _check(config)
        code = dispatch(cells, list(overrides))
        if code in (INTERRUPTED, TERMINATED):
            raise KeyboardInterrupt
        jobs = jobs_of(configs)
        runs = distinct_runs(jobs)
        missing = [run.folder.name for run in runs if not run.done]
        if missing:
            names = ", ".join(missing)
            raise ResultsError(f"{len(missing)} of {len(runs)} runs have no result ({names}). {errors()}")
        if code:
            raise ResultsError(f"A run or a study failed. {errors()} Earlier results stay stored.")
        return Results(jobs)


def _composed(overrides: Sequence[str]) -> list[Cell]:
    """The cells of a command line. Raises ConfigError for one that only prints, and for what is no list of texts."""
    if (
        isinstance(overrides, str)
        or not isinstance(overrides, Sequence)
        or not all(isinstance(each, str) for each in overrides)
    ):
        raise wrong(
            "moe_lab.run(overrides)",
            overrides,
            'give a list of texts: moe_lab.run(["method=roe", "task=toy_math"])',
        )
    # some of these would end the interpreter
    cells = [] if PRINTING & set(overrides) else compose_or_explain(list(overrides))
    if not cells:
        raise ConfigError(f"{' '.join(overrides)} only prints, and has no results. Use the command.")
    return cells


@contextmanager
def _output(quiet: bool) -> Iterator[Callable[[], str]]:
    """Within this, nothing is printed if `quiet`. Yields a function that says where the errors are."""
    if not quiet:
        yield lambda: "The errors are above."
        return
    printed = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(printed):
        yield lambda: f"The errors:\n{printed.getvalue().strip()}\n"


def _check(config: Config) -> None:
    if config.mode != "run" or config.experiment:
        given = f"experiment={config.experiment}" if config.experiment else f"mode={config.mode}"
        raise ConfigError(f"moe_lab.run returns the results of runs, and {given} has none. Use the command.")
    name = config.method.name
    if issubclass(get_method(name), ModelMaker):
        raise ConfigError(f"method={name} makes a model and no results. Use the command.")
