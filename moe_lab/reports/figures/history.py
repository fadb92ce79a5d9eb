"""Optimization history: each trial's value, the best so far, the untuned model (RoE, Figures 7 to 9)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.stored_study import StoredStudy
from moe_lab.reports.figures.style import BLUE, GREY, ORANGE, RED, panel_per, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_history(
    studies: Sequence[StoredStudy], folder: Path, stem: str, title: str = "Optimization history"
) -> list[Path]:
    """One panel per study; returns the PNG and the CSV."""
    rows = [row for study in studies for row in history_rows(study)]
    return write_figure(lambda: panel_per(studies, title, _draw_study), rows, folder, stem)


def history_rows(study: StoredStudy) -> list[dict[str, Any]]:
    """One row per finished trial: its value, or a pruned trial's estimate; the best value so far; the untuned value."""
    better = min if study.info["direction"] == "minimize" else max
    best: float | None = None
    rows = []
    for trial in study.finished:
        if trial.value is not None:
            best = trial.value if best is None else better(best, trial.value)
        rows.append(
            {
                **study.key,
                "trial": trial.number,
                "state": trial.state,
                "value": trial.value,
                "estimate": trial.estimate,
                "best": best,
                "untuned": study.untuned,
            }
        )
    return rows


def _draw_study(axis: Axes, study: StoredStudy) -> None:
    rows = history_rows(study)
    numbers = [row["trial"] for row in rows]
    complete = [row for row in rows if row["value"] is not None]
    axis.plot(
        [row["trial"] for row in complete], [row["value"] for row in complete], "o", ms=3.2, color=BLUE,
        alpha=0.75, label="trial",
    )  # fmt: skip
    axis.plot(numbers, [row["best"] for row in rows], drawstyle="steps-post", color=RED, label="best so far")
    if study.untuned is not None:
        axis.axhline(study.untuned, color=GREY, ls="--", lw=1.2, label="untuned (trial 0)")
    pruned = [row for row in rows if row["estimate"] is not None]
    if pruned:
        axis.plot(
            [row["trial"] for row in pruned], [row["estimate"] for row in pruned], "o", ms=3.2, mfc="none",
            color=ORANGE, label="pruned (of what was scored)",
        )  # fmt: skip
    axis.set(title=study.label, xlabel="trial", ylabel=study.metric_label)
    axis.locator_params(axis="x", integer=True)
