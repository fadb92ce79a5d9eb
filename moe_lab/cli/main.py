"""The command: compose, check, do what `mode` says, print it; every ending has its exit code.

python -m moe_lab method=roe model=tiny task=toy_math
"""

import signal
import sys
import threading
from types import FrameType
from typing import Any

from moe_lab.config import __version__
from moe_lab.config.progress import bars_of_libraries_hidden
from moe_lab.config.streams import lasting_streams
from moe_lab.config.terminal import print_error, print_message
from moe_lab.errors import CONTINUES, ConfigError, Terminated, exit_code


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; `argv` without the program's name."""
    with lasting_streams():
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        except KeyboardInterrupt as stop:
            print_message(CONTINUES)
            return exit_code(stop)
        except Exception as error:
            print_error(error)
            return exit_code(error)


def _main(argv: list[str]) -> int:
    """As `main`, but errors are raised."""
    if "--help" in argv or "-h" in argv:
        from moe_lab.cli.help import help_text

        print(help_text(argv))
        return 0
    if "--version" in argv:
        print(f"moe_lab {__version__}")
        return 0
    from moe_lab.runs.config import compose_or_explain, to_configs

    try:
        cells = compose_or_explain(argv)
    except SystemExit as stop:  # argparse, and Hydra's flags that only print
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    if not cells:
        return 0
    from moe_lab.tasks.loading import task_cache

    handled = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # by submitit, in its job
    if threading.current_thread() is threading.main_thread() and not handled:
        signal.signal(signal.SIGTERM, _terminate)
    result: Any
    with task_cache(), bars_of_libraries_hidden():
        configs = to_configs(cells)
        mode = configs[0].mode
        if any(config.mode != mode for config in configs):
            raise ConfigError("A grid has one mode. Give mode= one value.")
        if mode == "prefetch":
            from moe_lab.cli.prefetch import prefetch

            return prefetch(configs, cells)
        if mode == "compare":
            from moe_lab.api.compare import compare_stored

            result = compare_stored(configs)
        else:
            from moe_lab.runs.grid import do

            result = do(mode, configs, cells, argv)
        result.print()
    return int(result.exit_code)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Let SIGTERM unwind as Ctrl-C does: what is stored so far is whole, and locks are free."""
    raise Terminated
