"""The lines of a paper's table on the page: cells, and published numbers without a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moe_lab.reports.pages.cell_state import AGREES, DISAGREES, NOT_AT_SCALE, state_of
from moe_lab.reports.pages.page import number


@dataclass(frozen=True)
class Row:
    """A line of a table: a cell, or a published number without one."""

    cell: dict[str, Any]
    state: str
    reason: str

    @property
    def score(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.cell["score"]
        return found

    @property
    def off(self) -> float | None:
        """Measured minus published, where the two can be compared."""
        if self.state not in (AGREES, DISAGREES) or self.score is None:
            return None
        value: float = self.score["value"] - self.cell["published"]["fraction"]
        return value


def rows_of(record: dict[str, Any]) -> list[Row]:
    """The lines of a table: its cells, then published numbers without a cell. A table of settings has none."""
    if record["of_settings"]:
        return []
    rows = [Row(cell, *state_of(cell, record["scale"])) for cell in record["cells"]]
    return rows + [_unmatched(record, published) for published in record["unmatched"]]


def axes_of(record: dict[str, Any], rows: Sequence[Row]) -> list[str]:
    """The axes on which any line has a place; published numbers may have more than the table."""
    own = [key for row in rows for key in row.cell["coordinates"]]
    return [
        axis
        for axis in dict.fromkeys([*record["axes"], *own])
        if any(row.cell["coordinates"].get(axis, "-") != "-" for row in rows)
    ]


def columns_of(rows: Sequence[Row]) -> set[str]:
    """The columns that are shown: those in which any line has a number."""
    scores = [row.score for row in rows if row.score is not None]
    names = {name for score in scores for name in ("n", "difference", "flips") if score[name] is not None}
    published = {"published"} if any(row.cell["published"] for row in rows) else set()
    return names | published | ({"off"} if any(row.off is not None for row in rows) else set())


def _unmatched(record: dict[str, Any], published: dict[str, Any]) -> Row:
    cell = {"coordinates": published["cell"], "score": None, "published": published, "compared": {}}
    return Row(cell, NOT_AT_SCALE, f"scale {record['scale']} has no such cell")


def _intervals(score: dict[str, Any]) -> str:
    """The interval over documents, then that over seeds."""
    texts = {
        name: " to ".join(map(number, score[key]))
        for name, key in (("", "interval"), ("seeds ", "seed_interval"))
        if score[key] is not None
    }
    return ", ".join(f"{name}{text}" for name, text in texts.items())


def latex_row(row: Row, axes: Sequence[str]) -> dict[str, str]:
    """A line of the LaTeX table of a measured row."""
    score, published = row.score, row.cell["published"]
    assert score is not None
    return {
        **{axis.rpartition(".")[2]: row.cell["coordinates"].get(axis, "-") for axis in axes},
        "measured": number(score["value"]),
        "95% interval": _intervals(score),
        "documents": "" if score["n"] is None else str(score["n"]),
        "difference to base": number(score["difference"], True),
        "published": "" if published is None else f"{published['fraction']:.4g}",
    }
