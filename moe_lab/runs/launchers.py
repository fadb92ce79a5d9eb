"""`launcher=`: workers, which are equal commands that share the runs of a grid by their locks.

The command waits for them. Then it computes whatever is unfinished, and writes the tables.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from moe_lab.config.overrides import LAUNCHER
from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.errors import ConfigError, RunHeldError, need_package
from moe_lab.models.distributed import num_processes
from moe_lab.results.folder import ATTEMPT
from moe_lab.runs.local_workers import run_local
from moe_lab.runs.queued_workers import run_ray, run_submitit
from moe_lab.runs.worker import log_of

LAUNCHERS = {"local": run_local, "ray": run_ray, "submitit": run_submitit}
"""Each starts the workers, waits for them, and returns their exit codes."""


def check_launcher(configs: Sequence[Config]) -> None:
    """Raise ConfigError for a command that workers cannot share, and for a launcher whose package
    is not installed."""
    launcher = configs[0].launcher.name
    if launcher in ("ray", "submitit"):
        need_package(launcher, launcher, f"launcher={launcher}")
    if configs[0].mode != "run":
        return
    for config in configs:
        if config.rerun:
            raise ConfigError(
                "rerun=true would compute every run in every worker. Leave launcher= out."
            )
        if config.device.startswith("cuda:"):
            raise ConfigError(
                f"device={config.device}: each worker has GPUs of its own. "
                "Leave it out, or launcher=. "
                "CUDA_VISIBLE_DEVICES says which GPUs workers share."
            )
        if num_processes() > 1:
            raise ConfigError(
                "torchrun starts the processes of one run, launcher= those of a grid. "
                "Leave one out."
            )


@contextmanager
def after_workers(config: Config, argv: Sequence[str]) -> Iterator[None]:
    """Let workers compute the runs of a command line before the context, if it has a launcher.

    Inside the context, runs that failed in a worker are not tried again; runs that are unfinished
    because a worker crashed are. The folder with the workers' output is kept if one of them failed.
    """
    if config.launcher.name == "none":
        yield
        return
    attempt = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = Path(config.output_dir).absolute() / "workers" / attempt
    folder.mkdir(parents=True)
    print_message(f"The output of the workers: {folder}")
    words = [word for word in argv if not word.startswith(LAUNCHER)]
    os.environ[ATTEMPT] = attempt
    any_failed = False
    try:
        codes = LAUNCHERS[config.launcher.name](folder, config, words)
        for number, code in enumerate(codes):
            # with wait=false, workers leave what others hold
            if code not in (0, RunHeldError.exit_code):
                any_failed = True
                print_message(
                    f"Worker {number} ended with exit code {code}: {log_of(folder, number)}"
                )
        yield
    finally:
        del os.environ[ATTEMPT]
    if not any_failed:
        shutil.rmtree(folder)
