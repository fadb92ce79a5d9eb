"""The untouched model beside RoE, task by task, one panel per model (RoE, Figure 3)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import BLUE, COLOURS, GREY, PAGE_WIDTH, write_figure
from moe_lab.reports.papers.cell_table import CellTable, coordinates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

MAX_BARS = 28
"""Bars of one panel that are legible at page width."""
MAX_LEVEL_LABELS = 5
"""Tasks whose names fit beside each other."""


COLUMNS = ["model", "task", "method", "metric", "value", "low", "high", "documents", "seeds", "std", "marks"]


def write_accuracy(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """Grouped bars with 95% intervals over documents, one panel per model."""
    rows = accuracy_rows(table)
    return write_figure(lambda: _draw(rows, title), rows.to_dict("records"), folder, stem)


def accuracy_rows(table: CellTable) -> DataFrame:
    """COLUMNS of every measured cell."""
    frame = table.frame()
    chat = [cell.coordinates.get("apply_chat_template") == "true" for cell in frame["cell"]]
    frame["task"] = [task + ", chat" * is_chat for task, is_chat in zip(frame["task"], chat, strict=True)]
    frame["method"] = coordinates(frame, "method")
    return frame[COLUMNS]


def _draw(rows: DataFrame, title: str) -> Figure:
    from matplotlib.figure import Figure

    models = rows.groupby("model", sort=False)
    figure = Figure(figsize=(PAGE_WIDTH, 2.5 * len(models) + 0.4), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(models), 1, squeeze=False).ravel()
    for axis, (model, own) in zip(axes, models, strict=True):
        _draw_model(axis, model, own)
    return figure


def _draw_model(axis: Axes, model: str, rows: DataFrame) -> None:
    tasks, methods = list(rows["task"].unique()), rows.groupby("method", sort=False)
    width = 0.8 / len(methods)
    for index, ((method, own), colour) in enumerate(zip(methods, [GREY, BLUE, *COLOURS[1:]], strict=False)):
        places = [tasks.index(task) + (index - (len(methods) - 1) / 2) * width for task in own["task"]]
        bars = axis.bar(places, own["value"], width * 0.94, color=colour, label=method)
        measured = own.assign(place=places).dropna(subset=["low"])
        if len(measured):
            bounds = [list(measured["value"] - measured["low"]), list(measured["high"] - measured["value"])]
            axis.errorbar(
                measured["place"],
                measured["value"],
                yerr=bounds,
                fmt="none",
                ecolor="black",
                elinewidth=0.9,
                capsize=2,
            )
        if len(rows) <= MAX_BARS:
            axis.bar_label(bars, [f"{value:.3f}" for value in own["value"]], label_type="center", fontsize=6.5,
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


def _metric_label(rows: DataFrame) -> str:
    names = {metric.partition(",")[0] for metric in rows["metric"]}
    return names.pop() if len(names) == 1 else "accuracy"


def _task_label(task: str, rows: DataFrame) -> str:
    counts = sorted({count for count in rows["documents"][rows["task"] == task] if count})
    return f"{task} ({'/'.join(map(str, counts))})" if counts else task
