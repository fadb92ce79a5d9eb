"""Quality against cost: the difference to the base model, by how much work of experts an answer takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import COLOURS, GREY, MARKERS, panel_per, quantity, write_figure
from moe_lab.reports.papers.cells import CellTable, TableCell
from moe_lab.reports.papers.told_apart import corrected_scores, place_of
from moe_lab.results.model import BASE, RunResult
from moe_lab.results.scores import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_quality_cost(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """One panel per task; a point with its 95% interval per method, filled where the corrected p is below 0.05."""
    rows = quality_rows(table)
    panels = [
        [row for row in rows if row["task"] == task] for task in dict.fromkeys(row["task"] for row in rows)
    ]
    draw = partial(_draw_task, labels=list(dict.fromkeys(row["label"] for row in rows)))
    return write_figure(lambda: panel_per(panels, title, draw, height=2.6, columns=2), rows, folder, stem)


def quality_rows(table: CellTable) -> list[dict[str, Any]]:
    """One row per measured cell whose base model is measured on the same task.

    `work` is the tokens of the cell's runs times the experts that each takes in a layer, relative to the base model's;
    `seconds` of answering are relative, too. Both are means over seeds. A backward pass (C3PO) is not counted.
    """
    scores = corrected_scores(table.cells, table.family)
    bases = {
        _task(cell): cell for cell in table.cells if cell.coordinates.get("method") == BASE and cell.results
    }
    rows = []
    for cell in table.cells:
        score, base = scores.get(place_of(cell)), bases.get(_task(cell))
        if score is None or base is None:
            continue
        low, high = score.difference_interval or (None, None)
        rows.append(
            {
                "task": f"{score.task} ({score.model})",
                "label": _label(cell, table.cells),
                "metric": score.metric,
                "lower_is_better": cell.results[0].lower_is_better(score.task, score.metric),
                "value": score.value,
                "difference": _difference(score, scores[place_of(base)]),
                "low": low,
                "high": high,
                "p_holm": score.p_holm,
                "significant": score.significant,
                "work": _mean_work(cell) / _mean_work(base),
                "seconds": _mean_seconds(cell) / _mean_seconds(base),
                "seeds": score.seeds,
                "examples": score.n,
            }
        )
    return rows


def _difference(score: Score, base: Score) -> float:
    """To the base model: the paired one, else that of the two values, without an interval."""
    if score.difference is not None:
        return score.difference
    assert score.value is not None and base.value is not None
    return score.value - base.value


def _task(cell: TableCell) -> tuple[str, str]:
    return cell.coordinates["model"], cell.coordinates["task"]


def _label(cell: TableCell, cells: Sequence[TableCell]) -> str:
    """The method, and of the settings in the table's first columns those in which its cells differ."""
    method = cell.coordinates["method"]
    own = [other.coordinates for other in cells if other.coordinates["method"] == method]
    settings = [
        f"{key.rpartition('.')[2]}={value}"
        for key, value in cell.coordinates.items()
        if key not in ("model", "task", "measure")
        and value != "-"
        and any(other[key] != value for other in own)
    ]
    return " ".join([method, *settings])


def _mean_work(cell: TableCell) -> float:
    return fmean(map(_work, cell.results))


def _work(result: RunResult) -> float:
    experts = result.report.get("experts_per_token") or result.model_facts["top_k"]
    return float(experts) * (result.cost.tokens_in or 0)


def _mean_seconds(cell: TableCell) -> float:
    return fmean(result.cost.seconds or 0.0 for result in cell.results)


def _draw_task(axis: Axes, rows: Sequence[dict[str, Any]], labels: Sequence[str]) -> None:
    for row in rows:
        number = labels.index(row["label"])
        colour = COLOURS[number % len(COLOURS)]
        marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]  # pairs repeat after 49
        if row["low"] is not None:
            axis.plot([row["work"]] * 2, [row["low"], row["high"]], "-", color=colour, lw=1.0)
        axis.plot(
            row["work"],
            row["difference"],
            marker,
            color=colour,
            mfc=colour if row["significant"] else "white",
            label=row["label"],
        )
    axis.axhline(0, color=GREY, ls=":", lw=1.1)
    first = rows[0]
    better = "lower is better" if first["lower_is_better"] else "higher is better"
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set(
        title=f"{first['task']}\n{first['examples']} examples, at most {max(row['seeds'] for row in rows)} seeds",
        xlabel="work of experts, base = 1",
        ylabel=f"difference of {quantity(first['metric'])}\n({better})",
    )
