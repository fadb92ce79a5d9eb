"""Where results are sent besides the output folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.config import Config


class Logger:
    """Does nothing: `logger=none`, and the base of all others."""

    def log_results(self, results: dict[str, Any], folder: Path) -> None:
        """The content of a run's results.json."""

    def log_trial(self, number: int, value: float | None, temperatures: Sequence[float], state: str) -> None:
        """One trial of a study; `state` is COMPLETE or PRUNED."""

    def log_study(self, folder: Path) -> None:
        """A finished study."""

    def log_figure(self, path: Path) -> None:
        """A PNG file."""


@contextmanager
def open_logger(config: Config, *, kind: str, name: str, group: str | None) -> Iterator[Logger]:
    """The logger of one run or study (`kind`)."""
    yield Logger()
