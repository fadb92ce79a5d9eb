"""The interface of a logger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moe_lab.results.model import RunResult


class Logger:
    """The interface of loggers. This base class logs nothing."""

    def log_results(self, result: RunResult) -> None:
        """A run ended. Its sample logs are in its folder."""

    def log_trial(self, number: int, value: float | None, temperatures: Sequence[float], state: str) -> None:
        """A trial of a study ended. `temperatures` has one entry per MoE layer; `value` is None for a pruned trial."""

    def log_study(self, folder: Path) -> None:
        """A study ended: its trials.csv, best.yaml and study.json lie in `folder`."""

    def log_figure(self, path: Path) -> None:
        """A figure was drawn: a PNG, perhaps with its CSV next to it."""
