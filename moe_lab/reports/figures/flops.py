"""Accuracy against FLOPs per question, by the number of core experts (C3PO, Figure 4)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.reports.figures.style import BLUE, GREY, panel_per, write_figure
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.cell_table import CellTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


COLUMNS = [
    "model",
    "task",
    "metric",
    "core_experts",
    "experts",
    "flops",
    "plain_flops",
    "value",
    "low",
    "high",
    "base",
    "documents",
]


def write_flops(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """One panel per model and task."""
    rows = flops_rows(table)
    panels = rows.groupby(["model", "task"], sort=False)
    return write_figure(
        lambda: panel_per(list(panels), title, _draw_task, height=2.5), rows.to_dict("records"), folder, stem
    )


def flops_rows(table: CellTable) -> DataFrame:
    """COLUMNS of every cell of C3PO whose operations were counted, by core experts.

    `flops` counts reading, optimizing and answering of a question, `plain_flops` reading and answering alone; `base`
    is the score of the untouched model on the same questions.
    """
    counted = [cell for cell in table.cells if cell.results and _flops(cell) is not None]
    frame = table.frame(counted)
    blocks = [cell.results[0]["moe_lab"] for cell in frame["cell"]]
    frame["experts"] = [block["model"]["experts"] for block in blocks]
    cores = [block["c3po"]["core_experts"] for block in blocks]
    frame["core_experts"] = [
        all_ if core is None else min(core, all_) for core, all_ in zip(cores, frame["experts"], strict=True)
    ]
    frame["flops"] = [block["c3po"]["flops_per_sample"] for block in blocks]
    frame["plain_flops"] = [block["c3po"]["flops_plain_per_sample"] for block in blocks]
    return frame[COLUMNS].sort_values(["model", "task", "core_experts"])


def _flops(cell: TableCell) -> float | None:
    return cell.results[0]["moe_lab"].get("c3po", {}).get("flops_per_sample")


def _draw_task(axis: Axes, panel: tuple[tuple[str, str], DataFrame]) -> None:
    (model, task), rows = panel
    costs = rows["flops"] / 1e9
    axis.plot(costs, rows["value"], "o-", color=BLUE, label="C3PO, with its core experts")
    if rows["low"].notna().all():
        limits = rows["low"].astype(float), rows["high"].astype(float)
        axis.fill_between(costs, *limits, color=BLUE, alpha=0.15, lw=0, label="95% interval")
    for cost, value, core in zip(costs, rows["value"], rows["core_experts"], strict=True):
        axis.annotate(
            str(core), (cost, value), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=6.5
        )
    first = rows.iloc[0]
    if first["base"] is not None:
        axis.axhline(first["base"], color=GREY, ls=":", lw=1.2, label="untouched model")
    axis.margins(x=0.08)
    axis.set(
        title=f"{model}, {task}\n({first['documents']} documents)",
        xlabel=f"GFLOPs per question\n(untouched: {first['plain_flops'] / 1e9:.3g})",
        ylabel=first["metric"].partition(",")[0],
    )
