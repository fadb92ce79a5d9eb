"""The results of `metrics=` as the terminal, the pages and the loggers show them: one module per kind.

The module of the same name in `moe_lab/runs/evaluation/` measures them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from moe_lab.config.schema import METRICS
from moe_lab.results.measured import Value
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import Family
from moe_lab.results.scores import Comparison

Content = TypeVar("Content")
"""The content of the file with a run's metrics."""
Table = tuple[list[str], list[list[Any]]]
"""Column names, and rows."""
Cell = str | Value


@dataclass(frozen=True)
class PageTable:
    """A table in the section about a run's routing."""

    title: str
    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    """The first cell of a row is its name."""


class View(ABC, Generic[Content]):
    """One kind of `metrics=`: where its results are stored, and how to show them."""

    def of(self, result: RunResult) -> Content | None:
        """The metrics stored with a result; None without metrics."""
        return self.stored(result.stored_in, result.run_id, result.commit)

    @abstractmethod
    def stored(self, folder: Path, run_id: str, commit: str | None) -> Content | None:
        """The content of the run's file if it is complete and of this run and hub commit, else None."""

    def comparisons(self, results: Sequence[RunResult]) -> dict[Comparison, float | None]:
        """The uncorrected p of each comparison that `print` shows. The comparisons belong to the command's family."""
        return {}

    @abstractmethod
    def print(self, results: Sequence[RunResult], family: Family) -> None:
        """Print one table of all results that have these metrics, with the corrected p of the command's family.

        Prints nothing if no result has them.
        """

    @abstractmethod
    def values(self, content: Content) -> dict[str, float]:
        """The logged values by name: `<kind>/<metric>/...`."""

    def tables(self, content: Content) -> dict[str, Table]:
        """The logged tables by name."""
        return {}

    @abstractmethod
    def page_table(self, content: Content) -> PageTable:
        """The table of a run's page."""


def view_of(metrics: str) -> View[Any] | None:
    """The view that `metrics=` names; None for `none`."""
    if metrics == "none":
        return None
    return import_module(f"moe_lab.reports.measures.{metrics}").VIEW


def views() -> list[View[Any]]:
    """The views of all kinds."""
    return [view for name in METRICS if (view := view_of(name)) is not None]
