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
    """Three panels against n: equivalent size, latency, memory. `rows` has one row per n, as
    `moe_lab/runs/experiments/figure_rows.py: equivalent_rows` measures them."""
    return write_figure(lambda: _draw(rows, title), rows, folder, stem)


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    figure, axes = panels(3, height=2.5)
    first = rows[0]
    figure.suptitle(
        f"{title}\n{first['model']} on {first['device']}; {first['task']}, {first['documents']} test documents; "
        f"{first['new_tokens']} new tokens, batch 1"
    )
    depths = sorted({row["equivalent_layers"] for row in rows})
    shown = f"{depths[0]}" if len(depths) == 1 else f"{depths[0]} to {depths[-1]}"
    plain = f"plain model of equivalent size ({shown} layers instead of {first['layers']}, random weights)"
    _draw_size(axes[0], rows)
    _draw_cost(axes[1], rows, "milliseconds_per_token", "time per generated token", plain)
    _draw_cost(axes[2], rows, "mebibytes", "memory", plain)
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


def _draw_cost(axis: Axes, rows: Sequence[dict[str, Any]], name: str, title: str, plain: str) -> None:
    """Draw RoE and the larger model relative to the untouched model, measured in turns with them."""
    counts = [row["n"] for row in rows]
    for kind, line, colour, label in (("roe", "o-", BLUE, "RoE"), ("equivalent", "s-", ORANGE, plain)):
        values = [row[f"{kind}_{name}"] / row[f"base_{name}"] for row in rows]
        axis.plot(counts, values, line, color=colour, label=label)
    axis.axhline(1, color=GREY, ls="--", lw=1.2, label="untouched model")
    axis.set(title=title, ylabel="relative to untouched")
    count_axis(axis, counts, "n (rows per token)")
