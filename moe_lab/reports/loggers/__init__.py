"""Loggers: none (`logger=none`), or W&B. The files in the output folder remain the primary record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moe_lab.reports.loggers.logger import Logger

if TYPE_CHECKING:
    from moe_lab.config.schema import Config

__all__ = ["Logger", "open_logger"]


@contextmanager
def open_logger(config: Config, *, kind: str, name: str, group: str | None) -> Iterator[Logger]:
    """The logger of `logger=` for one run (kind "run") or one study (kind "study").

    `name` is its folder's, `group` an experiment's or a study's name. No logger costs a result: what fails in one is
    reported once on stderr.
    """
    if config.logger.name == "none":
        yield Logger()
        return
    from moe_lab.reports.loggers.wandb import wandb_logger

    with wandb_logger(config, kind=kind, name=name, group=group) as logger:
        yield logger
