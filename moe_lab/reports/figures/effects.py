"""Differences of all comparisons with their intervals, one panel per task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.quantity import quantity
from moe_lab.reports.figures.style import BLUE, GREY, PAGE_WIDTH, write_figure
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.told_apart import corrected_scores, place_of
from moe_lab.results.significance import ALPHA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = ("method", "method.reference", "method.schedule")
"""Keys whose values name a row; the recipe's noise is spelled out."""
NOISE = "model.recipe.routing_noise"


def write_effects(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """Points with 95% intervals and a line at 0; filled where the corrected p is below 0.05."""
    rows = effect_rows(table)
    return write_figure(lambda: _draw(rows, title), rows, folder, stem)


def effect_rows(table: CellTable) -> list[dict[str, Any]]:
    """One row for each comparison of a cell that has an interval."""
    scores = corrected_scores(table.cells)
    rows = []
    for cell in table.cells:
        for other in (None, *(name for place, name in scores if place == place_of(cell)[0] and name)):
            score = scores.get(place_of(cell, other))
            if score is None or score.difference_interval is None:
                continue
            low, high = score.difference_interval
            rows.append(
                {
                    "task": score.task,
                    "metric": score.metric,
                    "label": _label(cell.coordinates, other),
                    "difference": score.difference,
                    "low": low,
                    "high": high,
                    "p_holm": score.p_holm,
                    "seeds": score.seeds,
                    "examples": score.n,
                }
            )
    return rows


def _label(coordinates: dict[str, str], other: str | None) -> str:
    values = [coordinates.get(key, "-") for key in NAMED]
    if values[0] == "c3po":
        values[2] = "-"  # the schedule of its learning rate
    noise = {"0": "no noise in training", "1": "noise in training"}.get(coordinates.get(NOISE, "-"), "-")
    name = ", ".join(value for value in (*values, noise) if value != "-")
    return f"{name}: minus {(other or 'base').replace('_', ' ')}"


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    groups = [[row for row in rows if row["task"] == task] for task in tasks]
    heights = [len(group) for group in groups]
    figure = Figure(
        figsize=(PAGE_WIDTH, 0.22 * sum(heights) + 0.75 * len(groups) + 0.3), layout="constrained"
    )
    figure.suptitle(title)
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights).ravel()
    for axis, group in zip(axes, groups, strict=True):
        _draw_task(axis, group)
    return figure


def _draw_task(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    axis.axvline(0, color=GREY, ls=":", lw=1.1)
    for height, row in enumerate(rows):
        significant = row["p_holm"] is not None and row["p_holm"] < ALPHA
        axis.plot([row["low"], row["high"]], [height, height], "-", color=BLUE, lw=1.2)
        axis.plot(row["difference"], height, "o", color=BLUE, mfc=BLUE if significant else "white")
    axis.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    first = rows[0]
    axis.set(
        title=f"{first['task']}, {first['seeds']} seeds, {first['examples']} examples",
        xlabel=f"difference of {quantity(first['metric'])}, 95% interval; filled: significant after Holm",
    )
