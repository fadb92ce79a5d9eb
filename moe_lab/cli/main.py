"""The command: compose, check, then do what `mode` says; every ending has its exit code.

python -m moe_lab method=roe model=tiny task=toy_math
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, get_type_hints

from moe_lab.config import __version__
from moe_lab.config.terminal import shown_output
from moe_lab.errors import CONTINUES, ConfigError, Terminated, exit_code, print_error

if TYPE_CHECKING:
    from moe_lab.config.compose import Cell
    from moe_lab.config.schema import Config

MODES = {
    "run": ("moe_lab.runs.grid:run_grid", "moe_lab.runs.experiments.runner:run_experiments"),
    "plan": ("moe_lab.runs.grid:planned", "moe_lab.runs.experiments.runner:planned_experiments"),
    "report": ("moe_lab.runs.grid:report_grid", "moe_lab.runs.experiments.runner:report_experiments"),
    "prefetch": ("moe_lab.cli.prefetch:prefetch", "moe_lab.cli.prefetch:prefetch_experiments"),
    "compare": ("moe_lab.runs.compare:compare_results",),
}
"""Each mode's function of the configurations of a grid, and of one configuration and cell with `experiment=`, if any.

Both return the exit code; of mode=plan the plan, which is printed here.
"""
JOBS = ("moe_lab.runs.jobs:jobs_of", "moe_lab.runs.experiments.runner:jobs_of_experiments")
"""The same for the jobs of a command."""


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; `argv` without the program's name."""
    arguments = sys.argv[1:] if argv is None else argv
    hide_progress_of_libraries()
    with shown_output():
        try:
            return _main(list(arguments))
        except KeyboardInterrupt as stop:
            print(CONTINUES, file=sys.stderr)
            return exit_code(stop)
        except Exception as error:
            print_error(error)
            return exit_code(error)


def hide_progress_of_libraries() -> None:
    """Disable the progress bars of other packages if stderr is no terminal. Call it before tqdm is imported."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")


def _main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        from moe_lab.cli.help import help_text

        print(help_text(argv))
        return 0
    if "--version" in argv:
        print(f"moe_lab {__version__}")
        return 0
    try:
        cells = compose_or_explain(argv)
    except SystemExit as stop:  # argparse, and Hydra's flags that only print
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    if not cells:
        return 0
    from moe_lab.runs.attempts import STARTER

    if starter := os.environ.get(STARTER):
        threading.Thread(target=_end_with, args=(int(starter),), daemon=True).start()
    handled = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # by submitit, in its job
    if threading.current_thread() is threading.main_thread() and not handled:
        signal.signal(signal.SIGTERM, _terminate)
    return dispatch(cells, argv)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Let SIGTERM unwind as Ctrl-C does: what is stored so far is whole, and locks are free."""
    raise Terminated


def _end_with(starter: int) -> None:
    """Terminate this worker when the command that started it has ended, even by SIGKILL."""
    while os.getppid() == starter:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def compose_or_explain(argv: list[str]) -> list[Cell]:
    """The cells of a command line. Raises ConfigError for everything that Hydra refuses."""
    from moe_lab.config.compose import compose
    from moe_lab.config.overrides import REQUEST_ERRORS, explain

    try:
        return compose(argv)
    except REQUEST_ERRORS as error:
        from moe_lab.methods import get_method, methods_with

        def annotations(key: str) -> list[Any]:
            return [get_type_hints(get_method(name).Config)[key] for name in methods_with(key)]

        raise ConfigError(explain(error, methods_with, annotations)) from error


def dispatch(cells: list[Cell], argv: list[str]) -> int:
    """Do what `mode` says with the composed cells of a command line and return the exit code."""
    from moe_lab.runs.config import to_configs
    from moe_lab.tasks.loading import task_cache

    with task_cache():
        configs = to_configs(cells)
        mode = configs[0].mode
        if any(config.mode != mode for config in configs):
            raise ConfigError("A grid has one mode. Give mode= one value.")
        _check_agent(configs)
        if configs[0].launcher.name != "none" and mode in ("run", "plan"):
            _function("moe_lab.cli.launchers:check_package")(configs[0].launcher.name)
            if mode == "run":
                with _function("moe_lab.cli.launchers:launched")(
                    configs, argv, lambda: call(JOBS, configs, cells)
                ) as words:  # the same command line, without the workers that have made the runs
                    return dispatch(compose_or_explain(words), words)
        found = call(MODES[mode], configs, cells)
        if mode != "plan":
            return int(found)
        _function("moe_lab.runs.plan:print_plan")(found)
        return 2 if found.refused and not configs[0].experiment else 0


def call(places: tuple[str, ...], configs: list[Config], cells: list[Cell]) -> Any:
    """What the function of a grid, or with `experiment=` the one of experiments, returns."""
    if len(places) == 1 or not any(config.experiment for config in configs):
        return _function(places[0])(configs)
    if len(configs) > 1:
        from moe_lab.config.overrides import OWN_GRID

        raise ConfigError(OWN_GRID)
    return _function(places[1])(configs[0], cells[0])


def _check_agent(configs: list[Config]) -> None:
    """Raise ConfigError for several runs of the one that an agent of W&B has opened."""
    several = len(configs) > 1 or any(
        one.num_seeds > 1 or one.num_studies or one.experiment for one in configs
    )
    if several and configs[0].logger.name == "wandb" and "WANDB_RUN_ID" in os.environ:
        raise ConfigError(
            f"WANDB_RUN_ID={os.environ['WANDB_RUN_ID']} is one run of W&B, and this command has several. "
            "Leave seeds=, tuning= and -m out, or unset the variable."
        )


def _function(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
