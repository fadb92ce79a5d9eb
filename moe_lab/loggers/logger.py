"""What a logger is told, and how one is opened. `logger=none` imports and does nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.config import Config


class Logger:
    """The logger that logs nothing; others override what they show."""

    def log_results(self, results: dict[str, Any], folder: Path) -> None:
        """A run ended: `results` is the content of its results.json, which lies in `folder` with its sample logs."""

    def log_trial(self, number: int, value: float | None, temperatures: Sequence[float], state: str) -> None:
        """A trial of a study ended; `temperatures` has one entry per MoE layer, `value` is None where it was pruned."""

    def log_study(self, folder: Path) -> None:
        """A study ended: its trials.csv, best.yaml and study.json lie in `folder`."""

    def log_figure(self, path: Path) -> None:
        """A figure was drawn: a PNG, perhaps with the CSV behind it beside it."""


@contextmanager
def open_logger(config: Config, *, kind: str, name: str, group: str | None) -> Iterator[Logger]:
    """The logger of `logger=` for one run (kind "run") or one study (kind "study").

    `name` is its folder's, `group` an experiment's or a study's name. No logger costs a result: what fails in one is
    told once on stderr.
    """
    if config.logger.name == "none":
        yield Logger()
        return
    from moe_lab.loggers.wandb import wandb_logger

    with wandb_logger(config, kind=kind, name=name, group=group) as logger:
        yield logger
