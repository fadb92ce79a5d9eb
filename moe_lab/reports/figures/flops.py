"""Accuracy against what a question costs, by the number of core experts (C3PO, Figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import BLUE, GREY, legend_below, panels, write_figure
from moe_lab.reports.papers.cell import TableCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_flops(cells: Sequence[TableCell], folder: Path, stem: str, title: str) -> list[Path]:
    """One panel per model and task; cells without a result are left out."""
    rows = flops_rows(cells)
    return write_figure(lambda: _draw(rows, title), rows, folder, stem) if rows else []


def flops_rows(cells: Sequence[TableCell]) -> list[dict[str, Any]]:
    """One row per cell of C3PO whose operations were counted, by core experts: FLOPs per question, and the score.

    `flops` counts reading, optimizing and answering, `plain_flops` reading and answering alone; `base` is the score of
    the untouched model on the same questions.
    """
    rows = []
    for cell in cells:
        row, block = cell.row(), cell.results[0]["moe_lab"] if cell.results else {}
        if row is None or row.value is None or block.get("c3po", {}).get("flops_per_sample") is None:
            continue
        core, experts = block["c3po"]["core_experts"], block["model"]["experts"]
        rows.append(
            {
                "model": row.model,
                "task": row.task,
                "metric": row.metric,
                "core_experts": experts if core is None else min(core, experts),
                "experts": experts,
                "flops": block["c3po"]["flops_per_sample"],
                "plain_flops": block["c3po"]["flops_plain_per_sample"],
                "value": row.value,
                "low": row.interval[0] if row.interval else None,
                "high": row.interval[1] if row.interval else None,
                "base": row.baseline,
                "documents": row.n,
            }
        )
    return sorted(rows, key=lambda row: (row["model"], row["task"], row["core_experts"]))


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    places = list(dict.fromkeys((row["model"], row["task"]) for row in rows))
    figure, axes = panels(len(places), height=2.5)
    figure.suptitle(title)
    for axis, (model, task) in zip(axes, places, strict=True):
        _draw_task(axis, [row for row in rows if (row["model"], row["task"]) == (model, task)])
    legend_below(figure, axes)
    return figure


def _draw_task(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    costs, values = [row["flops"] / 1e9 for row in rows], [row["value"] for row in rows]
    axis.plot(costs, values, "o-", color=BLUE, label="C3PO, with its core experts")
    if all(row["low"] is not None for row in rows):
        limits = [row["low"] for row in rows], [row["high"] for row in rows]
        axis.fill_between(costs, *limits, color=BLUE, alpha=0.15, lw=0, label="95% interval")
    for cost, value, row in zip(costs, values, rows, strict=True):
        axis.annotate(
            str(row["core_experts"]), (cost, value), textcoords="offset points", xytext=(0, 6), ha="center",
            fontsize=6.5,
        )  # fmt: skip
    first = rows[0]
    if first["base"] is not None:
        axis.axhline(first["base"], color=GREY, ls=":", lw=1.2, label="untouched model")
    axis.margins(x=0.08)
    axis.set(
        title=f"{first['model']}, {first['task']}\n({first['documents']} documents)",
        xlabel=f"GFLOPs per question\n(untouched: {first['plain_flops'] / 1e9:.3g})",
        ylabel=first["metric"].partition(",")[0],
    )
