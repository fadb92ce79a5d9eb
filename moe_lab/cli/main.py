"""The command: compose, check, then run, plan, report or diagnose; every ending has its exit code.

python -m moe_lab method=roe model=tiny task=toy_math
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from moe_lab import __version__
from moe_lab.errors import ConfigError, exit_code, print_error, raise_on_sigterm
from moe_lab.progress import without_bars_of_libraries

if TYPE_CHECKING:
    from moe_lab.config.compose import Cell
    from moe_lab.config.schema import Config


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; `argv` without the program's name."""
    arguments = sys.argv[1:] if argv is None else argv
    without_bars_of_libraries()
    try:
        return _main(list(arguments))
    except SystemExit as stop:  # argparse, and Hydra's flags that only print
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt as stop:
        print("Interrupted. The same command continues where this one stopped.", file=sys.stderr)
        return exit_code(stop)
    except BrokenPipeError:  # whoever read our output has gone (head, a pager)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        print_error(error)
        return exit_code(error)


def _main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        from moe_lab.cli.help import help_text

        print(help_text(argv))
        return 0
    if "--version" in argv:
        print(f"moe_lab {__version__}")
        return 0
    cells = compose_or_explain(argv)
    if not cells:
        return 0
    if threading.current_thread() is threading.main_thread():
        raise_on_sigterm()
    return dispatch(cells)


def compose_or_explain(argv: list[str]) -> list[Cell]:
    """The cells of a command line. Raises ConfigError for whatever Hydra refuses."""
    from moe_lab.config.compose import check_launcher, compose
    from moe_lab.config.hydra_errors import REQUEST_ERRORS, explain

    try:
        cells = compose(argv)
    except REQUEST_ERRORS as error:
        from moe_lab.methods import methods_with

        raise ConfigError(explain(error, methods_with)) from error
    for cell in cells:
        check_launcher(cell)
    return cells


def dispatch(cells: list[Cell]) -> int:
    """Do what `mode` says with the composed cells."""
    from moe_lab.tasks.loading import keeping_tasks

    with keeping_tasks():
        return _dispatch(cells)


def _dispatch(cells: list[Cell]) -> int:
    from moe_lab.runs.checks import check_tuning_keys
    from moe_lab.runs.config import to_configs

    configs = to_configs(cells)
    mode = configs[0].mode
    if any(config.mode != mode for config in configs):
        raise ConfigError("A grid has one mode. Give mode= one value.")
    if mode == "doctor":
        from moe_lab.cli.doctor.report import diagnose

        for section in diagnose(configs[0], _all_cells(configs, cells)):
            print(section, flush=True)
        return 0
    if mode == "prefetch":
        from moe_lab.cli.prefetch import prefetch

        return prefetch(_all_cells(configs, cells))
    check_tuning_keys(configs)
    if mode != "run":
        return _at_once(configs, cells[0])
    from moe_lab.runs.distributed import in_step

    return in_step(configs, lambda: _at_once(configs, cells[0]))


def _at_once(configs: list[Config], cell: Cell) -> int:
    if any(config.experiment for config in configs):
        from moe_lab.config.compose import OWN_GRID
        from moe_lab.runs.experiments.runner import run_experiments

        if len(configs) > 1:
            raise ConfigError(OWN_GRID)
        return run_experiments(configs[0], cell)
    from moe_lab.runs.grid import plan_grid, report_grid, run_grid

    return {"run": run_grid, "plan": plan_grid, "report": report_grid}[configs[0].mode](configs)


def _all_cells(configs: list[Config], cells: list[Cell]) -> list[Config]:
    """The configurations of a grid, or of the experiments that its one cell names."""
    if not any(config.experiment for config in configs):
        return configs
    from moe_lab.runs.experiments.cells import experiment_configs

    return experiment_configs(configs[0], cells[0])
