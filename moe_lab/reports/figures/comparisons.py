"""Figures of scores against the base model: accuracy, equal expert work, differences with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import (
    BLUE,
    COLOURS,
    GREY,
    NUMBER_BOX,
    ORANGE,
    count_axis,
    draw_row,
    error_bars,
    name_rows,
    outline,
    stacked_panels,
    write_figure,
    write_panels,
    write_panels_of_rows,
)
from moe_lab.reports.papers.cells import (
    CellTable,
    TableCell,
    averages,
    coordinates,
    corrected_scores,
    place_of,
)
from moe_lab.reports.papers.metrics import quantity
from moe_lab.results.significance import ALPHA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


# The base model next to RoE, task by task, one panel per model (RoE, Figure 3)

MAX_BARS = 28
"""Bars of one panel that are legible at page width."""
MAX_LEVEL_LABELS = 5
"""Tasks whose names fit next to each other."""


ACCURACY_COLUMNS = [
    *("model", "task", "method", "metric", "value", "low", "high"),
    *("documents", "seeds", "std", "marks"),
]


def write_accuracy(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """Grouped bars with 95% intervals over documents, one panel per model."""
    rows = accuracy_rows(table)
    return write_figure(lambda: _accuracy_draw(rows, title), rows.to_dict("records"), folder, stem)


def accuracy_rows(table: CellTable) -> DataFrame:
    """ACCURACY_COLUMNS of every measured cell."""
    frame = table.frame()
    chat = [cell.coordinates.get("apply_chat_template") == "true" for cell in frame["cell"]]
    frame["task"] = [task + ", chat" * is_chat for task, is_chat in zip(frame["task"], chat, strict=True)]
    frame["method"] = coordinates(frame, "method")
    return frame[ACCURACY_COLUMNS]


def _accuracy_draw(rows: DataFrame, title: str) -> Figure:
    models = rows.groupby("model", sort=False)
    figure, axes = stacked_panels(2.5 * len(models) + 0.4, [1] * len(models), title)
    for axis, (model, own) in zip(axes, models, strict=True):
        _draw_model(axis, model, own)
    return figure


def _draw_model(axis: Axes, model: str, rows: DataFrame) -> None:
    tasks, methods = list(rows["task"].unique()), rows.groupby("method", sort=False)
    width = 0.8 / len(methods)
    for index, ((method, own), colour) in enumerate(zip(methods, [GREY, BLUE, *COLOURS[1:]], strict=False)):
        places = [tasks.index(task) + (index - (len(methods) - 1) / 2) * width for task in own["task"]]
        axis.bar(places, own["value"], width * 0.94, color=colour, label=method)
        measured = own.assign(place=places).dropna(subset=["low"])
        if len(measured):
            bounds = error_bars(measured["value"], measured["low"], measured["high"])
            _, caps, lines = axis.errorbar(
                measured["place"], measured["value"], yerr=bounds, fmt="none", ecolor="black", elinewidth=0.9,
                capsize=2,
            )  # fmt: skip
            outline([*caps, *lines])
        if len(rows) <= MAX_BARS:
            for place, value, high in zip(places, own["value"], own["high"], strict=True):
                _number_above(axis, place, value, value if high is None else high, upright=len(rows) > 12)
    axis.margins(y=0.2 if len(rows) <= MAX_BARS else 0.05)
    axis.set(
        title=f"{model} (95% intervals over documents, their number in brackets)",
        ylabel=_metric_label(rows),
        ylim=(0, None),
    )
    slanted: dict[str, Any] = {"rotation": 30, "ha": "right"} if len(tasks) > MAX_LEVEL_LABELS else {}
    axis.set_xticks(range(len(tasks)), [_task_label(task, rows) for task in tasks], **slanted)
    axis.grid(axis="x", visible=False)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _number_above(axis: Axes, place: float, value: float, top: float, upright: bool) -> None:
    """Write a bar's number above its interval."""
    axis.annotate(
        f"{value:.3f}", (place, top), xytext=(0, 2.5), textcoords="offset points", ha="center", va="bottom",
        fontsize=6.5, rotation=90 if upright else 0, bbox=NUMBER_BOX,
    )  # fmt: skip


def _metric_label(rows: DataFrame) -> str:
    names = {metric.partition(",")[0] for metric in rows["metric"]}
    return names.pop() if len(names) == 1 else "accuracy"


def _task_label(task: str, rows: DataFrame) -> str:
    counts = sorted({count for count in rows["documents"][rows["task"] == task] if count})
    return f"{task} ({'/'.join(map(str, counts))})" if counts else task


# RoE next to the base model with more experts per token, at equal expert work (RoE, section 1)

ROUNDING = "temperature 0"
"""The suffix of the name of RoE without noise."""


def _line_of(method: str) -> tuple[str, str, str, float]:
    """Label, colour, marker and sideways shift of a method."""
    if method == "base":
        return "base model with k' experts", ORANGE, "s", 0.97
    if method.endswith(ROUNDING):
        return "RoE at temperature 0: rounding alone", GREY, "^", 1.0
    return "RoE: n samples of k experts", BLUE, "o", 1.03


CONTROL_COLUMNS = [
    *("model", "task", "method", "metric", "rows", "experts_per_token", "expert_work"),
    *("value", "low", "high", "documents", "seeds", "std"),
]


def write_control(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """The metric against experts computed per token and layer, one panel per model and task."""
    rows, by = control_rows(table), ["model", "task"]
    return write_panels(rows, by, _control_draw_task, folder, stem, title, height=2.4)


def control_rows(table: CellTable) -> DataFrame:
    """CONTROL_COLUMNS of every measured cell; `expert_work` is rows times experts per token."""
    frame = table.frame()
    results = [cell.results[0] for cell in frame["cell"]]
    frame["method"] = coordinates(frame, "method")
    frame["rows"] = [result.method_config.get("n", 1) for result in results]
    frame["experts_per_token"] = [result.model_facts["top_k"] for result in results]
    frame["expert_work"] = frame["rows"] * frame["experts_per_token"]
    return frame[CONTROL_COLUMNS].sort_values(["model", "task", "method", "expert_work"])


def _control_draw_task(axis: Axes, panel: tuple[tuple[str, str], DataFrame]) -> None:
    (model, task), rows = panel
    for method, shown in rows.groupby("method", sort=False):
        label, colour, marker, shift = _line_of(str(method))
        bounds = error_bars(shown["value"], shown["low"], shown["high"])
        axis.errorbar(
            shown["expert_work"] * shift, list(shown["value"]), yerr=bounds, fmt=f"{marker}-", color=colour,
            capsize=2, elinewidth=0.9, label=label,
        )  # fmt: skip
    own = set(rows["experts_per_token"][rows["method"] != "base"])
    for count in own:
        axis.axvline(count, color=GREY, ls=":", lw=1.2, label="the model's own k")
    count_axis(axis, sorted({*rows["expert_work"], *own}), "experts computed per token and layer")
    first = rows.iloc[0]
    axis.set(
        title=f"{model}, {task}\n({first['documents']} documents, 95% intervals)",
        ylabel=first["metric"].partition(",")[0],
    )


# A forest plot: the scores of many settings, one panel per task (C3PO, Figures 1 and 3)

FOREST_COLUMNS = [
    *("setting", "panel", "method", "metric", "value", "low", "high"),
    *("documents", "published", "marks"),
]


def write_forest(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """Points with 95% intervals over documents, a line at base."""
    return write_panels_of_rows(forest_rows(table), "setting", _draw_panel, folder, stem, title)


def forest_rows(table: CellTable) -> DataFrame:
    """FOREST_COLUMNS of every measured cell and average."""
    experiment, cells = table.experiment, table.cells
    across = [key for key in experiment.keys if key not in experiment.rows]
    named = [key for key in experiment.rows if len({cell.coordinates[key] for cell in cells}) > 1]
    frame = table.frame([*cells, *averages(experiment, cells)])
    settings = ([cell.coordinates[key] for key in named or experiment.rows[:1]] for cell in frame["cell"])
    frame["setting"] = [", ".join(text for text in setting if text != "-") for setting in settings]
    frame["panel"] = [", ".join(cell.coordinates[key] for key in across) for cell in frame["cell"]]
    return frame[FOREST_COLUMNS]


def _draw_panel(axis: Axes, panel: tuple[str, DataFrame], lines: Sequence[str]) -> None:
    name, rows = panel
    for row in rows.itertuples():
        upper = "upper-bound" in row.marks
        colour = GREY if row.method == "base" else ORANGE if upper else BLUE
        label = f"{row.method}, upper bound" if upper else row.method
        draw_row(axis, row, lines.index(row.setting), colour, label)
    base = list(rows["value"][rows["method"] == "base"])
    if len(base) == 1:
        axis.axvline(base[0], color=GREY, ls=":", lw=1.1)
    counts = "/".join(dict.fromkeys(map(str, rows["documents"])))
    axis.set(
        title=f"{name} ({counts} documents)", xlabel=f"{quantity(rows.iloc[0]['metric'])}, 95% intervals"
    )
    name_rows(axis, lines)


# Differences of all comparisons with their intervals, one panel per task

NAMED = ("method.reference", "method.schedule")
"""Keys whose values are part of a row's name if the cells of its method differ in them."""
NOISE = "model.recipe.routing_noise"


def write_effects(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """Points with 95% intervals and a line at 0; filled where the corrected p is below 0.05."""
    rows = effect_rows(table)
    return write_figure(lambda: _effects_draw(rows, title), rows, folder, stem)


def effect_rows(table: CellTable) -> list[dict[str, Any]]:
    """One row for each comparison of a cell that has an interval."""
    scores = corrected_scores(table.cells, table.family)
    varied = _varied(table.cells)
    rows = []
    for cell in table.cells:
        for other in (name for place, name in scores if place == place_of(cell)[0]):
            score = scores.get(place_of(cell, other))
            if score is None or score.tested_interval is None:
                continue
            low, high = score.tested_interval
            rows.append(
                {
                    "task": score.task,
                    "metric": score.metric,
                    "label": _label(cell.coordinates, varied, other),
                    "difference": score.difference,
                    "low": low,
                    "high": high,
                    "p_holm": score.p_holm,
                    "seeds": score.seeds,
                    "examples": score.n,
                }
            )
    return rows


def _varied(cells: Sequence[TableCell]) -> set[tuple[str, str]]:
    """(method, key) of the keys in NAMED with several values among the cells of a method."""
    found: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        for key in NAMED:
            place = cell.coordinates.get("method", "-"), key
            found.setdefault(place, set()).add(cell.coordinates.get(key, "-"))
    return {place for place, values in found.items() if len(values) > 1}


def _label(coordinates: dict[str, str], varied: set[tuple[str, str]], other: str) -> str:
    method = coordinates.get("method", "-")
    values = [method, *(coordinates.get(key, "-") for key in NAMED if (method, key) in varied)]
    noise = {"0": "no noise in training", "1": "noise in training"}.get(coordinates.get(NOISE, "-"), "-")
    name = ", ".join(value for value in (*values, noise) if value != "-")
    return f"{name}: minus {other.replace('_', ' ')}"


def _effects_draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    groups = [[row for row in rows if row["task"] == task] for task in tasks]
    heights = [len(group) for group in groups]
    figure, axes = stacked_panels(0.22 * sum(heights) + 0.75 * len(groups) + 0.3, heights, title)
    for axis, group in zip(axes, groups, strict=True):
        _effects_draw_task(axis, group)
    return figure


def _effects_draw_task(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    axis.axvline(0, color=GREY, ls=":", lw=1.1)
    for height, row in enumerate(rows):
        significant = row["p_holm"] is not None and row["p_holm"] < ALPHA
        axis.plot([row["low"], row["high"]], [height, height], "-", color=BLUE, lw=1.2)
        axis.plot(row["difference"], height, "o", color=BLUE, mfc=BLUE if significant else "white")
    axis.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    first = rows[0]
    axis.set(
        title=f"{first['task']}, {first['seeds']} seed{'s' * (first['seeds'] != 1)}, {first['examples']} examples",
        xlabel=f"difference of {quantity(first['metric'])}, 95% interval; filled: significant after Holm",
    )
