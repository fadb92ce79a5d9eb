"""The interface of a logger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


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
