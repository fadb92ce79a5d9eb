"""One temperature for all layers, swept: the metric against it (RoE, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.stored_study import StoredStudy, StoredTrial
from moe_lab.reports.figures.style import BLUE, GREY, RED, panel_per, write_figure
from moe_lab.results.statistics import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_sweep(
    studies: Sequence[StoredStudy],
    folder: Path,
    stem: str,
    title: str = "One temperature for all MoE layers",
) -> list[Path]:
    """One panel per study; returns the PNG and the CSV."""
    rows = [row for study in studies for row in sweep_rows(study)]
    return write_figure(lambda: panel_per(studies, title, _draw_study), rows, folder, stem)


def sweep_rows(study: StoredStudy) -> list[dict[str, Any]]:
    """One row per complete trial, by temperature: value, and the 95% interval of an accuracy (Wilson)."""
    rows = []
    for trial in sorted(study.complete, key=lambda trial: float(trial.temperature or 0)):
        low, high = accuracy_interval(study, trial) or (None, None)
        rows.append(
            {
                **study.key,
                "temperature": trial.temperature,
                "value": trial.value,
                "low": low,
                "high": high,
                "documents": study.info["num_samples"],
            }
        )
    return rows


def accuracy_interval(study: StoredStudy, trial: StoredTrial) -> tuple[float, float] | None:
    """Over the tuning documents; None for a metric that is no share of them."""
    count = int(study.info["num_samples"])
    right = float(trial.value or 0) * count
    if study.info["metric"] != "accuracy" or abs(right - round(right)) > 1e-6 * count:
        return None
    return interval([1] * round(right) + [0] * (count - round(right)))


def _zero_label(study: StoredStudy) -> str:
    return "temperature 0, calibrated" if study.info.get("logit_scale") else "temperature 0"


def best_label(study: StoredStudy) -> str:
    """The legend of the best trial: whether a better one may lie beyond the bound of the search."""
    return "best (at the bound of the search)" if study.at_bound else "best"


def _draw_study(axis: Axes, study: StoredStudy) -> None:
    rows = sweep_rows(study)
    temperatures = [row["temperature"] for row in rows]
    axis.plot(temperatures, [row["value"] for row in rows], "o-", ms=3, color=BLUE, label="RoE")
    if all(row["low"] is not None for row in rows):
        axis.fill_between(
            temperatures, [row["low"] for row in rows], [row["high"] for row in rows], color=BLUE, alpha=0.15,
            lw=0, label="95% interval",
        )  # fmt: skip
    if study.untuned is not None:
        axis.axhline(study.untuned, color=GREY, ls="--", lw=1.2, label=_zero_label(study))
    best = next(row for row in rows if row["value"] == study.best.value)
    axis.plot(best["temperature"], best["value"], "*", ms=10, color=RED, label=best_label(study))
    axis.set(title=study.label, xlabel="temperature", ylabel=study.metric_label)
