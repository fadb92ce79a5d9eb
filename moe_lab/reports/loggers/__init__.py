"""Loggers: none (`logger=none`), or W&B. The files in the output folder remain the primary record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.reports.loggers.logger import Logger

if TYPE_CHECKING:
    from moe_lab.config.schema import Config

__all__ = ["Logger", "open_logger"]


@contextmanager
def open_logger(
    config: Config, *, kind: str, name: str, group: str | None, folder: Path | None = None
) -> Iterator[Logger]:
    """The logger of `logger=` for one run, study, experiment or command (`kind`).

    No logger costs a result: what fails in one is reported once on stderr.

    Args:
        name: of a run or study its folder's.
        group: the command's name.
        folder: of a run, where the logger stores what it has logged.
    """
    if config.logger.name == "none":
        yield Logger()
        return
    from moe_lab.reports.loggers.wandb import wandb_logger

    with wandb_logger(config, kind=kind, name=name, group=group, folder=folder) as logger:
        yield logger
