"""More active experts in one pass against RoE at equal expert work (RoE, section 1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import BLUE, GREY, ORANGE, count_axis, legend_below, panels, write_figure
from moe_lab.reports.papers.cell import TableCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = {
    "base": ("untouched model with k' experts", ORANGE, "s", 0.97),
    "roe": ("RoE: n rows of k experts", BLUE, "o", 1.03),
    "roe, temperature 0": ("RoE at temperature 0: rounding alone", GREY, "^", 1.0),
}
"""Label, colour, marker and sideways shift of each method."""


def write_control(cells: Sequence[TableCell], folder: Path, stem: str, title: str) -> list[Path]:
    """The metric against experts computed per token and layer, one panel per model and task."""
    rows = control_rows(cells)
    return write_figure(lambda: _draw(rows, title), rows, folder, stem) if rows else []


def control_rows(cells: Sequence[TableCell]) -> list[dict[str, Any]]:
    """One row per measured cell; `expert_work` is rows times experts per token."""
    rows = []
    for cell in cells:
        row = cell.row()
        if row is None or row.value is None:
            continue
        block = cell.results[0]["moe_lab"]
        count, experts = block["method"]["config"].get("n", 1), block["model"]["top_k"]
        rows.append(
            {
                "model": row.model,
                "task": row.task,
                "method": cell.coordinates.get("method", row.method),
                "metric": row.metric,
                "rows": count,
                "experts_per_token": experts,
                "expert_work": count * experts,
                "value": row.value,
                "low": row.interval[0] if row.interval else None,
                "high": row.interval[1] if row.interval else None,
                "documents": row.n,
                "seeds": row.seeds,
                "std": row.std,
            }
        )
    return sorted(rows, key=lambda row: (row["model"], row["task"], row["method"], row["expert_work"]))


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    places = list(dict.fromkeys((row["model"], row["task"]) for row in rows))
    figure, axes = panels(len(places), height=2.4)
    figure.suptitle(title)
    for axis, (model, task) in zip(axes, places, strict=True):
        _draw_task(axis, [row for row in rows if (row["model"], row["task"]) == (model, task)])
    legend_below(figure, axes)
    return figure


def _draw_task(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for method, (label, colour, marker, shift) in LINES.items():
        shown = [row for row in rows if row["method"] == method]
        if not shown:
            continue
        bounds = None
        if all(row["low"] is not None for row in shown):
            bounds = [
                [row["value"] - row["low"] for row in shown],
                [row["high"] - row["value"] for row in shown],
            ]
        axis.errorbar(
            [row["expert_work"] * shift for row in shown], [row["value"] for row in shown], yerr=bounds,
            fmt=f"{marker}-", color=colour, capsize=2, elinewidth=0.9, label=label,
        )  # fmt: skip
    own = {row["experts_per_token"] for row in rows if row["method"] == "roe"}
    for count in own:
        axis.axvline(count, color=GREY, ls=":", lw=1.2, label="the model's own k")
    count_axis(
        axis, sorted({row["expert_work"] for row in rows} | own), "experts computed per token and layer"
    )
    first = rows[0]
    axis.set(
        title=f"{first['model']}, {first['task']}\n({first['documents']} documents, 95% intervals)",
        ylabel=first["metric"].partition(",")[0],
    )
