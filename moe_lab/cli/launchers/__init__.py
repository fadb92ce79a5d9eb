"""`launcher=`: workers that share the runs of one command, which waits for them and then writes its tables."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from moe_lab.cli.launchers.watch import print_failed
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.training_method import ModelMaker
from moe_lab.models.distributed import num_processes
from moe_lab.results.folder import check_writable
from moe_lab.runs.board import Board, on_board

OURS = re.compile(r"\+*launcher[.=]")
"""An override that the workers do not get."""


@contextmanager
def launched(configs: Sequence[Config], argv: list[str]) -> Iterator[None]:
    """Let workers make the runs of a command line; within, its board is this process's.

    What they leave, because all of them died, say, is left to this process. The folder with their output is kept if
    one failed. Raises ConfigError for a command that workers cannot share.
    """
    _check(configs)
    config = configs[0]
    check_writable(config.output_dir)
    folder = (
        Path(config.output_dir).absolute() / "workers" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    )
    folder.mkdir(parents=True)
    board = Board(folder)
    engine = import_module(f"moe_lab.cli.launchers.{config.launcher.name}")
    codes = engine.run_workers(board, config, [word for word in argv if not OURS.match(word)])
    print_failed(board, codes)
    with on_board(board):
        yield
    if not any(codes) and not board.failures():
        shutil.rmtree(folder)


def _check(configs: Sequence[Config]) -> None:
    for config in configs:
        if issubclass(get_method(config.method.name), ModelMaker):
            raise ConfigError(
                f"method={config.method.name} trains one model, which workers cannot share. Leave launcher= out."
            )
    if configs[0].rerun:
        raise ConfigError("rerun=true would compute every run in every worker. Leave launcher= out.")
    for config in configs:
        if config.model.device_map or config.device.startswith("cuda:"):
            raise ConfigError(
                "Each worker has one GPU: leave device=cuda:<index> and model.device_map out, or launcher=. "
                "CUDA_VISIBLE_DEVICES says which GPUs workers share."
            )
    if num_processes() > 1:
        raise ConfigError(
            "torchrun starts the processes of one run, launcher= those of a grid. Leave one of them out."
        )
