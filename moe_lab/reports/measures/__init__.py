"""What `metrics=` measured of a run, as the terminal, the pages and the loggers show it: one module per kind.

The module of the same name in `moe_lab/runs/evaluation/` measures it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from moe_lab.config.schema import METRICS
from moe_lab.reports.measures.view import Cell, PageTable, Table, View

__all__ = ["Cell", "PageTable", "Table", "View", "view_of", "views"]


def view_of(metrics: str) -> View[Any] | None:
    """The view of the kind that `metrics=` names; None for none."""
    if metrics == "none":
        return None
    return import_module(f"moe_lab.reports.measures.{metrics}").VIEW


def views() -> list[View[Any]]:
    """Of all kinds."""
    return [view for name in METRICS if (view := view_of(name)) is not None]
