"""The interface of a logger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.results.model import RunResult

if TYPE_CHECKING:
    import pandas as pd


class Logger:
    """The interface of loggers. This base class logs nothing."""

    logged = False
    """Whether the run's result was logged to the same place before."""

    def begin(self) -> None:
        """Show the run as running. Without this call it begins with the first value that is logged."""

    def log_results(self, result: RunResult) -> None:
        """A run ended. Its sample logs are in its folder."""

    def log_trial(self, number: int, value: float | None, temperatures: Sequence[float], state: str) -> None:
        """A trial of a study ended. `temperatures` has one entry per MoE layer; `value` is None for a pruned trial."""

    def log_study(self, folder: Path) -> None:
        """A study ended: its trials.csv, best.yaml and study.json lie in `folder`."""

    def log_table(self, name: str, frame: pd.DataFrame) -> None:
        """The table of a command, or of an experiment."""

    def log_figure(self, path: Path) -> None:
        """A figure was drawn: a PNG, perhaps with its CSV next to it."""
