"""Equivalent model size of RoE, and its cost beside a plain model of that size (RoE, Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import BLUE, GREY, ORANGE, count_axis, legend_below, panels, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_equivalent(rows: Sequence[dict[str, Any]], folder: Path, stem: str, title: str) -> list[Path]:
    """Three panels against n: equivalent size, latency, memory. `rows` as `moe_lab.figures` makes them, one per n."""
    return write_figure(lambda: _draw(rows, title), rows, folder, stem) if rows else []


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    figure, axes = panels(3, height=2.5)
    first = rows[0]
    figure.suptitle(
        f"{title}\n{first['model']} on {first['device']}; {first['task']}, {first['documents']} test documents; "
        f"{first['new_tokens']} new tokens, batch 1"
    )
    _draw_size(axes[0], rows)
    _draw_cost(axes[1], rows, "milliseconds_per_token", "latency", "ms per generated token")
    _draw_cost(axes[2], rows, "mebibytes", "memory (weights and working memory)", "MiB")
    legend_below(figure, axes, columns=3)
    return figure


def _draw_size(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    counts = [row["n"] for row in rows]
    sizes = [row["size_ratio"] for row in rows]
    bounds = None
    if all(row["size_ratio_low"] is not None for row in rows):
        bounds = [
            [size - row["size_ratio_low"] for size, row in zip(sizes, rows, strict=True)],
            [row["size_ratio_high"] - size for size, row in zip(sizes, rows, strict=True)],
        ]
    axis.errorbar(counts, sizes, yerr=bounds, fmt="o-", color=BLUE, capsize=2, elinewidth=0.9, label="RoE")
    axis.axhline(1, color=GREY, ls="--", lw=1.2, label="untouched model")
    axis.set(title="equivalent size (95% interval)", ylabel="equivalent size / own size")
    count_axis(axis, counts, "n (rows per token)")


def _draw_cost(axis: Axes, rows: Sequence[dict[str, Any]], name: str, title: str, unit: str) -> None:
    counts = [row["n"] for row in rows]
    axis.plot(counts, [row[f"roe_{name}"] for row in rows], "o-", color=BLUE, label="RoE")
    axis.plot(
        counts, [row[f"equivalent_{name}"] for row in rows], "s-", color=ORANGE,
        label="plain model of equivalent size (random weights)",
    )  # fmt: skip
    axis.plot(
        counts, [row[f"base_{name}"] for row in rows], color=GREY, ls="--", lw=1.2, label="untouched model"
    )
    axis.set(title=title, ylabel=unit, ylim=(0, None))
    count_axis(axis, counts, "n (rows per token)")
