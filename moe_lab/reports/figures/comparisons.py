"""Figures of scores against the base model: accuracy, equal expert work, differences."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from moe_lab.reports.figures.differences import draw_differences
from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.panels import panels_by, panels_of_points
from moe_lab.reports.figures.primitives import bars, curves
from moe_lab.reports.figures.style import BLUE, COLOURS, GREY, ORANGE, count_axis
from moe_lab.reports.papers.averages import averages
from moe_lab.reports.papers.cell_table import CellTable, varied_label
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.units import quantity
from moe_lab.reports.score_line import ScoreLine

CONTROL_COLUMNS = [
    "model",
    "task",
    "method",
    "metric",
    "rows",
    "experts_per_token",
    "expert_work",
    "value",
    "low",
    "high",
    "examples",
    "seeds",
    "std",
]
FOREST_COLUMNS = [
    "setting",
    "panel",
    "method",
    "metric",
    "value",
    "low",
    "high",
    "examples",
    "published",
    "notes",
]
EFFECT_COLUMNS = (
    "task",
    "metric",
    "label",
    "difference",
    "low",
    "high",
    "p_holm",
    "seeds",
    "examples",
)


def draw_accuracy(table: CellTable) -> Drawing:
    """The base model next to RoE, task by task (RoE, Figure 3).

    Bars with 95% intervals, one panel per model.
    """
    frame = table.frame(method=["method"])
    if frame.duplicated(["model", "task", "method"]).any():  # several settings of a method
        frame["method"] = [varied_label(cell, table.cells) for cell in frame["cell"]]
    tasks = []
    for task, cell in zip(frame["task"], frame["cell"], strict=True):
        has_template = cell.coordinates.get("apply_chat_template") == "true"
        tasks.append(f"{task}, chat" if has_template else task)
    frame["task"] = tasks

    rows = frame.drop(columns=["cell", "stderr", "published"])
    return panels_by(rows, "model", _draw_accuracy, columns=1, height=2.5)


def _draw_accuracy(axis: Axes, model: str, rows: DataFrame) -> None:
    """The panel of a model: a bar for each task and method."""
    examples = rows.groupby("task")["examples"].unique()
    task_labels = {}
    for task in rows["task"].unique():
        counts = "/".join(map(str, examples[task]))
        task_labels[task] = f"{task} ({counts})"
    bars(
        axis,
        rows.assign(task=rows["task"].map(task_labels)),
        "task",
        "method",
        order=list(task_labels.values()),
        series=list(rows["method"].unique()),
        colours=[GREY, BLUE, *COLOURS[1:]],
    )
    metrics = rows["metric"].str.partition(",")[0].unique()
    axis.set(
        title=f"{model} (95% intervals over documents, their number in brackets)",
        ylabel=metrics[0] if len(metrics) == 1 else "accuracy",
        ylim=(0, None),
    )


def draw_control(table: CellTable) -> Drawing:
    """RoE and the base model with more experts per token, at equal expert work (RoE, section 1).

    The metric against experts computed per token and layer (`expert_work`: rows times experts per
    token). One panel per model and task.
    """
    frame = table.frame(method=["method"])
    results = [cell.results[0] for cell in frame["cell"]]
    frame["rows"] = [result.method.settings.get("n", 1) for result in results]
    frame["experts_per_token"] = [result.model.top_k for result in results]
    frame["expert_work"] = frame["rows"] * frame["experts_per_token"]
    rows = frame[CONTROL_COLUMNS].sort_values(["model", "task", "method", "expert_work"])
    return panels_by(rows, ["model", "task"], _draw_control, height=2.4)


def _draw_control(axis: Axes, names: tuple[str, str], rows: DataFrame) -> None:
    """The panel of a model and a task: a curve for each method."""
    curves(axis, rows, "expert_work", by="method")
    of_model = set(rows["experts_per_token"][rows["method"] != "base"])
    for experts in of_model:
        axis.axvline(experts, color=GREY, ls=":", lw=1.2, label="the model's own k")
    counts = sorted({*rows["expert_work"], *of_model})
    count_axis(axis, counts, "experts computed per token and layer")
    first = rows.iloc[0]
    axis.set(
        title=f"{', '.join(names)}\n({first['examples']} documents, 95% intervals)",
        ylabel=first["metric"].partition(",")[0],
    )


def draw_forest(table: CellTable) -> Drawing:
    """A forest plot: the scores of many settings, one panel per task (C3PO, Figures 1 and 3).

    Points with 95% intervals over documents, a line at base; every measured cell and average.
    """
    experiment = table.experiment
    panel_axes = [key for key in experiment.keys if key not in experiment.rows]
    line_axes = table.varied(experiment.rows) or experiment.rows[:1]
    cells = [*table.cells, *averages(experiment, table.cells)]
    frame = table.frame(cells, panel=panel_axes)
    frame["setting"] = [_setting(cell, line_axes) for cell in frame["cell"]]
    return panels_of_points(frame[FOREST_COLUMNS], "setting", _point_look, _finish_forest)


def _setting(cell: TableCell, axes: Sequence[str]) -> str:
    """The coordinates of a cell on some axes, without dashes."""
    values = [cell.coordinates[axis] for axis in axes]
    return ", ".join(value for value in values if value != "-")


def _point_look(row: Any) -> dict[str, Any]:
    """Colour and label of a point, by its method."""
    if "upper-bound" in row.notes:
        return {"color": ORANGE, "label": f"{row.method}, upper bound"}
    colour = GREY if row.method == "base" else BLUE
    return {"color": colour, "label": row.method}


def _finish_forest(axis: Axes, name: str, rows: DataFrame) -> None:
    """A line at base, and the titles."""
    base_values = list(rows["value"][rows["method"] == "base"])
    if len(base_values) == 1:
        axis.axvline(base_values[0], color=GREY, ls=":", lw=1.1)
    counts = "/".join(dict.fromkeys(map(str, rows["examples"])))
    metric = quantity(rows.iloc[0]["metric"])
    axis.set(title=f"{name} ({counts} documents)", xlabel=f"{metric}, 95% intervals")


def draw_effects(table: CellTable) -> Drawing:
    """Every comparison of a cell that has an interval, as points, one panel per task.

    A point is filled where the corrected p is below 0.05.
    """
    rows = []
    groups: dict[str, list[ScoreLine]] = {}
    for cell in table.cells:
        for other, score in cell.scores(table.family).items():
            if score.tested_interval is None:
                continue
            label = f"{varied_label(cell, table.cells)}: minus {other.replace('_', ' ')}"
            low, high = score.tested_interval
            known = vars(score) | {"label": label, "low": low, "high": high, "examples": score.n}
            rows.append({name: known[name] for name in EFFECT_COLUMNS})
            groups.setdefault(score.task, []).append(ScoreLine(score, label))
    titles = [_effects_title(task, lines[0]) for task, lines in groups.items()]

    def draw(title: str) -> Figure:
        return draw_differences(list(groups.values()), titles, title)

    return Drawing(rows, draw)


def _effects_title(task: str, line: ScoreLine) -> str:
    """The title of a panel: "gsm8k, 5 seeds, 1319 examples"."""
    score = line.score
    seeds = "1 seed" if score.seeds == 1 else f"{score.seeds} seeds"
    return f"{task}, {seeds}, {score.n} examples"
