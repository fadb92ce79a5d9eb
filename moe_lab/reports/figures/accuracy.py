"""The untouched model beside RoE, task by task, one panel per model (RoE, Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import BLUE, COLOURS, GREY, PAGE_WIDTH, write_figure
from moe_lab.reports.papers.cell import TableCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BARS = 28
"""Bars of one panel that are legible at page width."""
MAX_LEVEL_LABELS = 5
"""Tasks whose names fit beside each other."""


def write_accuracy(cells: Sequence[TableCell], folder: Path, stem: str, title: str) -> list[Path]:
    """Grouped bars with 95% intervals over documents; cells without a result are left out."""
    rows = accuracy_rows(cells)
    return write_figure(lambda: _draw(rows, title), rows, folder, stem) if rows else []


def accuracy_rows(cells: Sequence[TableCell]) -> list[dict[str, Any]]:
    """One row per measured cell: model, task, method, value, its interval, documents, seeds, spread, marks."""
    found = [(cell.coordinates, row) for cell in cells if (row := cell.row()) and row.value is not None]
    return [
        {
            "model": row.model,
            "task": row.task + (", chat" if place.get("apply_chat_template") == "true" else ""),
            "method": place.get("method", row.method),
            "metric": row.metric,
            "value": row.value,
            "low": row.interval[0] if row.interval else None,
            "high": row.interval[1] if row.interval else None,
            "documents": row.n,
            "seeds": row.seeds,
            "std": row.std,
            "marks": " ".join(row.marks),
        }
        for place, row in found
    ]


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(PAGE_WIDTH, 2.5 * len(models) + 0.4), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(models), 1, squeeze=False).ravel()
    for axis, model in zip(axes, models, strict=True):
        _draw_model(axis, model, [row for row in rows if row["model"] == model])
    return figure


def _draw_model(axis: Axes, model: str, rows: Sequence[dict[str, Any]]) -> None:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    width = 0.8 / len(methods)
    colours = dict(zip(methods, [GREY, BLUE, *COLOURS[1:]], strict=False))
    for index, method in enumerate(methods):
        shown = [row for row in rows if row["method"] == method]
        places = [tasks.index(row["task"]) + (index - (len(methods) - 1) / 2) * width for row in shown]
        values = [row["value"] for row in shown]
        bars = axis.bar(places, values, width * 0.94, color=colours[method], label=method)
        known = [(place, row) for place, row in zip(places, shown, strict=True) if row["low"] is not None]
        if known:
            below = [row["value"] - row["low"] for _, row in known]
            above = [row["high"] - row["value"] for _, row in known]
            axis.errorbar(
                [place for place, _ in known], [row["value"] for _, row in known], yerr=[below, above],
                fmt="none", ecolor="black", elinewidth=0.9, capsize=2,
            )  # fmt: skip
        if len(rows) <= MAX_BARS:
            axis.bar_label(bars, [f"{value:.3f}" for value in values], label_type="center", fontsize=6.5,
                           color="white", rotation=90 if len(rows) > 12 else 0)  # fmt: skip
    axis.set(
        title=f"{model} (95% intervals over documents, whose number stands in brackets)",
        ylabel=_metric_label(rows),
        ylim=(0, None),
    )
    slanted: dict[str, Any] = {"rotation": 30, "ha": "right"} if len(tasks) > MAX_LEVEL_LABELS else {}
    axis.set_xticks(range(len(tasks)), [_task_label(task, rows) for task in tasks], **slanted)
    axis.grid(axis="x", visible=False)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _metric_label(rows: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["metric"].partition(",")[0] for row in rows))
    return names[0] if len(names) == 1 else "accuracy"


def _task_label(task: str, rows: Sequence[dict[str, Any]]) -> str:
    counts = sorted({row["documents"] for row in rows if row["task"] == task and row["documents"]})
    return f"{task} ({'/'.join(map(str, counts))})" if counts else task
