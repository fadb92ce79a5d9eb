"""Figures of scores against the base model: accuracy, equal expert work, differences with intervals."""

from typing import Any

from matplotlib.axes import Axes
from pandas import DataFrame

from moe_lab.reports.figures.primitives import (
    bars,
    curves,
    draw_differences,
    panels_by,
    panels_of_points,
)
from moe_lab.reports.figures.style import BLUE, COLOURS, GREY, ORANGE, Drawing, count_axis
from moe_lab.reports.papers.averages import averages
from moe_lab.reports.papers.cell_table import CellTable, varied_label
from moe_lab.reports.papers.units import quantity
from moe_lab.reports.score_line import ScoreLine


def draw_accuracy(table: CellTable) -> Drawing:
    """The base model next to RoE, task by task: bars with 95% intervals, one panel per model (RoE, Figure 3)."""
    frame = table.frame(method=["method"])
    chat = [cell.coordinates.get("apply_chat_template") == "true" for cell in frame["cell"]]
    if frame.duplicated(["model", "task", "method"]).any():  # several settings of a method
        frame["method"] = [varied_label(cell, table.cells) for cell in frame["cell"]]
    frame["task"] = [
        task + ", chat" * is_chat for task, is_chat in zip(frame["task"], chat, strict=True)
    ]

    def panel(axis: Axes, model: str, rows: DataFrame) -> None:
        counts = rows.groupby("task")["examples"].unique()
        tasks = {
            task: f"{task} ({'/'.join(map(str, counts[task]))})" for task in rows["task"].unique()
        }
        names = rows["metric"].str.partition(",")[0].unique()
        order, series = list(tasks.values()), list(rows["method"].unique())
        named = rows.assign(task=rows["task"].map(tasks))
        bars(
            axis,
            named,
            "task",
            "method",
            order=order,
            series=series,
            colours=[GREY, BLUE, *COLOURS[1:]],
        )
        axis.set(
            title=f"{model} (95% intervals over documents, their number in brackets)",
            ylabel=names[0] if len(names) == 1 else "accuracy",
            ylim=(0, None),
        )

    rows = frame.drop(columns=["cell", "stderr", "published"])
    return panels_by(rows, "model", panel, columns=1, height=2.5)


def draw_control(table: CellTable) -> Drawing:
    """RoE next to the base model with more experts per token, at equal expert work (RoE, section 1).

    The metric against experts computed per token and layer (`expert_work`: rows times experts per token), one panel per
    model and task.
    """
    frame = table.frame(method=["method"])
    results = [cell.results[0] for cell in frame["cell"]]
    frame["rows"] = [result.method.settings.get("n", 1) for result in results]
    frame["experts_per_token"] = [result.model.top_k for result in results]
    frame["expert_work"] = frame["rows"] * frame["experts_per_token"]

    def panel(axis: Axes, names: tuple[str, str], rows: DataFrame) -> None:
        curves(axis, rows, "expert_work", by="method")
        own = set(rows["experts_per_token"][rows["method"] != "base"])
        for count in own:
            axis.axvline(count, color=GREY, ls=":", lw=1.2, label="the model's own k")
        count_axis(
            axis, sorted({*rows["expert_work"], *own}), "experts computed per token and layer"
        )
        first = rows.iloc[0]
        axis.set(
            title=f"{', '.join(names)}\n({first['examples']} documents, 95% intervals)",
            ylabel=first["metric"].partition(",")[0],
        )

    columns = ["model", "task", "method", "metric", "rows", "experts_per_token", "expert_work"]
    columns += ["value", "low", "high", "examples", "seeds", "std"]
    rows = frame[columns].sort_values(["model", "task", "method", "expert_work"])
    return panels_by(rows, ["model", "task"], panel, height=2.4)


def draw_forest(table: CellTable) -> Drawing:
    """A forest plot: the scores of many settings, one panel per task (C3PO, Figures 1 and 3).

    Points with 95% intervals over documents, a line at base; every measured cell and average.
    """
    experiment = table.experiment
    across = [key for key in experiment.keys if key not in experiment.rows]
    named = table.varied(experiment.rows) or experiment.rows[:1]
    frame = table.frame([*table.cells, *averages(experiment, table.cells)], panel=across)
    settings = ([cell.coordinates[key] for key in named] for cell in frame["cell"])
    frame["setting"] = [", ".join(text for text in setting if text != "-") for setting in settings]

    def look(row: Any) -> dict[str, Any]:
        if "upper-bound" in row.notes:
            return {"color": ORANGE, "label": f"{row.method}, upper bound"}
        return {"color": GREY if row.method == "base" else BLUE, "label": row.method}

    def finish(axis: Axes, name: str, rows: DataFrame) -> None:
        base = list(rows["value"][rows["method"] == "base"])
        if len(base) == 1:
            axis.axvline(base[0], color=GREY, ls=":", lw=1.1)
        counts = "/".join(dict.fromkeys(map(str, rows["examples"])))
        metric = quantity(rows.iloc[0]["metric"])
        axis.set(title=f"{name} ({counts} documents)", xlabel=f"{metric}, 95% intervals")

    columns = ["setting", "panel", "method", "metric", "value", "low", "high"]
    columns += ["examples", "published", "notes"]
    return panels_of_points(frame[columns], "setting", look, finish)


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


def draw_effects(table: CellTable) -> Drawing:
    """Every comparison of a cell that has an interval, as points, one panel per task.

    A point is filled where the corrected p is below 0.05.
    """
    rows, groups = [], dict[str, list[ScoreLine]]()
    for cell in table.cells:
        for other, score in cell.scores(table.family).items():
            if score.tested_interval is None:
                continue
            label = f"{varied_label(cell, table.cells)}: minus {other.replace('_', ' ')}"
            low, high = score.tested_interval
            known = vars(score) | {"label": label, "low": low, "high": high, "examples": score.n}
            rows.append({name: known[name] for name in EFFECT_COLUMNS})
            groups.setdefault(score.task, []).append(ScoreLine(score, label))
    titles = [
        f"{task}, {line.score.seeds} seed{'s' * (line.score.seeds != 1)}, {line.score.n} examples"
        for task, (line, *_) in groups.items()
    ]
    return Drawing(rows, lambda title: draw_differences(list(groups.values()), titles, title))
