"""Figures of tuning: the history, the sweep of one temperature, and temperatures per layer (RoE, Figures 6 to 10)."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.primitives import curve, heatmap, panel_per, stacked_panels
from moe_lab.reports.figures.style import DARK_INK, GREEN, GREY, LIGHT_INK, ORANGE, RED, write_figure
from moe_lab.reports.papers.cells import TableCell
from moe_lab.results.shapes import typed
from moe_lab.results.statistics import interval
from moe_lab.results.stored_files import damaged, read_csv, read_mapping

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


# A study as stored in its folder: study.json, trials.csv, best.yaml

COMPLETE, PRUNED = "COMPLETE", "PRUNED"


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A finished trial."""

    number: int
    value: float | None
    """None for a pruned trial."""
    estimate: float | None = None
    """The metric of a pruned trial over the documents that it scored."""
    temperature: float | None
    """The one temperature of all layers with tuning=uniform."""

    @property
    def state(self) -> str:
        return PRUNED if self.value is None else COMPLETE


@dataclass(frozen=True, kw_only=True)
class StudyInfo:
    """The fields of study.json that figures need."""

    model: str
    task: str
    tuning: str
    metric: str
    n: int
    cache: str
    direction: str
    num_samples: int
    """Tuning documents."""
    skip_layers: int
    max_temperature: float
    logit_scale: bool = False


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """A stored study, for its figures."""

    folder: Path
    info: StudyInfo
    finished: list[StoredTrial]
    """Complete and pruned trials by number."""
    temperatures: list[float]
    """Temperatures of the best trial, one per MoE layer; empty without a profile."""
    calibrated: float | None
    """The metric of temperature 0 at its best logit scale: the control for a gain in perplexity."""
    at_bound: list[str]
    """The parameters at the bound of their search according to the profile, such as "layer_3"."""

    @property
    def complete(self) -> list[StoredTrial]:
        return [trial for trial in self.finished if trial.value is not None]

    @property
    def untuned(self) -> float | None:
        """The metric of the untuned model, which is trial 0."""
        return next((trial.value for trial in self.complete if trial.number == 0), None)

    @property
    def best(self) -> StoredTrial:
        """The first complete trial with the best value."""
        sign = 1 if self.info.direction == "minimize" else -1
        return min(self.complete, key=lambda trial: (sign * float(trial.value or 0), trial.number))

    @property
    def label(self) -> str:
        """Model, task and tuning documents, for a panel's title."""
        info = self.info
        cache = "" if info.cache == "clean" else f",\n{info.cache} cache"
        return f"{info.model}, {info.task}\n(n={info.n}, {info.num_samples} documents{cache})"

    @property
    def key(self) -> dict[str, object]:
        """The columns that name the study in a CSV."""
        return {
            name: getattr(self.info, name) for name in ("model", "task", "tuning", "metric", "n", "cache")
        }


def studies_of(cells: Sequence[TableCell]) -> list[StoredStudy]:
    """The studies of the cells that have a complete trial, each once."""
    folders = dict.fromkeys(folder for cell in cells for folder in cell.studies)
    return [study for study in map(read_study, folders) if study.complete]


def read_study(folder: Path) -> StoredStudy:
    """Read a study's folder; best.yaml is missing until trial 0 ends."""
    try:
        info: StudyInfo = typed(StudyInfo, read_mapping(folder / "study.json") or {})
    except ValueError as error:
        raise damaged(folder / "study.json", error) from error
    best = read_mapping(folder / "best.yaml") or {}
    try:
        rows = read_csv(folder / "trials.csv")
        trials = [_trial(row) for row in rows if row["state"] in (COMPLETE, PRUNED)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise damaged(folder / "trials.csv", error) from error
    return StoredStudy(
        folder=folder,
        info=info,
        finished=sorted(trials, key=lambda trial: trial.number),
        temperatures=best.get("temperature", []),
        calibrated=best.get("calibrated_score"),
        at_bound=best.get("at_bound", []),
    )


def draw_controls(axis: Axes, study: StoredStudy, untuned: str) -> None:
    """Draw the controls of RoE: the base model, and the base model at its best logit scale."""
    if study.untuned is not None and not study.info.logit_scale:
        axis.axhline(study.untuned, color=GREY, ls="--", lw=1.2, label=untuned)
    if study.calibrated is not None:
        axis.axhline(study.calibrated, color=GREEN, ls=":", lw=1.4, label=f"{untuned}, calibrated")


def _trial(row: dict[str, str]) -> StoredTrial:
    number = float(row["value"]) if row["value"] else math.nan
    value = number if math.isfinite(number) else None
    temperature = row.get("params_temperature")
    return StoredTrial(
        number=int(row["number"]),
        value=value if row["state"] == COMPLETE else None,
        estimate=value if row["state"] == PRUNED else None,
        temperature=float(temperature) if temperature else None,
    )


# Optimization history: each trial's value, the best so far, the untuned model (RoE, Figures 7 to 9)


def write_history(
    studies: Sequence[StoredStudy], folder: Path, stem: str, title: str = "Optimization history"
) -> list[Path]:
    """One panel per study; returns the PNG and the CSV."""
    rows = [row for study in studies for row in history_rows(study)]
    return write_figure(lambda: panel_per(studies, title, _history_draw_study), rows, folder, stem)


def history_rows(study: StoredStudy) -> list[dict[str, Any]]:
    """One row per finished trial: its value, or a pruned trial's estimate; the best value so far; the untuned value."""
    better = min if study.info.direction == "minimize" else max
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
                "calibrated": study.calibrated,
            }
        )
    return rows


def _history_draw_study(axis: Axes, study: StoredStudy) -> None:
    from pandas import DataFrame

    rows = DataFrame(history_rows(study), dtype=object)
    curve(axis, rows, "trial", style="o", ms=3.2, alpha=0.75, label="trial")
    curve(axis, rows, "trial", "best", style="-", colour=RED, drawstyle="steps-post", label="best so far")
    draw_controls(axis, study, "untuned (trial 0)")
    if rows["estimate"].notna().any():
        label = "pruned (of what was scored)"
        curve(axis, rows, "trial", "estimate", style="o", colour=ORANGE, ms=3.2, mfc="none", label=label)
    axis.set(title=study.label, xlabel="trial", ylabel=f"validation {study.info.metric}")
    axis.locator_params(axis="x", integer=True)


# One temperature for all layers, swept: the metric against it (RoE, Figure 6)


def write_sweep(
    studies: Sequence[StoredStudy],
    folder: Path,
    stem: str,
    title: str = "One temperature for all MoE layers",
) -> list[Path]:
    """One panel per study; returns the PNG and the CSV."""
    rows = [row for study in studies for row in sweep_rows(study)]
    return write_figure(lambda: panel_per(studies, title, _sweep_draw_study), rows, folder, stem)


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
                "calibrated": study.calibrated,
                "documents": study.info.num_samples,
            }
        )
    return rows


def accuracy_interval(study: StoredStudy, trial: StoredTrial) -> tuple[float, float] | None:
    """Wilson's interval over the tuning documents; None for a metric that is not a share of them."""
    count = study.info.num_samples
    right = float(trial.value or 0) * count
    if study.info.metric != "accuracy" or abs(right - round(right)) > 1e-6 * count:
        return None
    return interval([1] * round(right) + [0] * (count - round(right)))


def best_label(study: StoredStudy) -> str:
    """The legend of the best trial. A trial at the bound of the search may not be the best possible one."""
    return "best (at the bound of the search)" if study.at_bound else "best"


def _sweep_draw_study(axis: Axes, study: StoredStudy) -> None:
    from pandas import DataFrame

    rows = DataFrame(sweep_rows(study), dtype=object)
    curve(axis, rows, "temperature", ms=3, label="RoE", band="95% interval")
    draw_controls(axis, study, "temperature 0")
    best = rows[rows["value"] == study.best.value][:1]
    axis.plot(best["temperature"], best["value"], "*", ms=10, color=RED, label=best_label(study))
    axis.set(title=study.label, xlabel="temperature", ylabel=f"validation {study.info.metric}")


# Tuned temperature per MoE layer and task, one panel per model (RoE, Figure 10)

WRITTEN_LAYERS = 16
"""Most layers for which each cell shows its number."""


def write_heatmap(
    studies: Sequence[StoredStudy], folder: Path, stem: str, title: str = "Tuned temperature per MoE layer"
) -> list[Path]:
    """One row per study, one panel per model; returns the PNG and the CSV."""
    with_profile = [study for study in studies if study.temperatures]
    rows = [row for study in with_profile for row in _rows(study)]
    return write_figure(lambda: _draw(with_profile, title), rows, folder, stem)


def _rows(study: StoredStudy) -> list[dict[str, object]]:
    return [
        {**study.key, "layer": layer, "temperature": temperature, "skipped": _skipped(study, layer)}
        for layer, temperature in enumerate(study.temperatures)
    ]


def _skipped(study: StoredStudy, layer: int) -> bool:
    skip = study.info.skip_layers
    return not skip <= layer < len(study.temperatures) - skip


def _draw(studies: Sequence[StoredStudy], title: str) -> Figure:
    models = list(dict.fromkeys(study.info.model for study in studies))
    grouped = [[study for study in studies if study.info.model == model] for model in models]
    heights = [0.28 * len(group) + 0.55 for group in grouped]
    figure, axes = stacked_panels(sum(heights) + 0.75, heights, title)
    for axis, model, group in zip(axes, models, grouped, strict=True):
        # a colour scale for each model: their searches differ in range (RoE: up to 0.5 and 0.2)
        top = max(study.info.max_temperature for study in group)
        figure.colorbar(
            _draw_model(axis, model, group, top), ax=axis, label="temperature", fraction=0.03, pad=0.01
        )
    return figure


def _draw_model(axis: Axes, model: str, studies: Sequence[StoredStudy], top: float) -> AxesImage:
    import numpy as np

    layers = max(len(study.temperatures) for study in studies)
    values = np.full((len(studies), layers), np.nan)
    for row, study in enumerate(studies):
        for layer, temperature in enumerate(study.temperatures):
            if not _skipped(study, layer):
                values[row, layer] = temperature
    axis.set_facecolor("#DDDDDD")
    image = heatmap(
        axis,
        values,
        top,
        title=f"{model} (–: layer without noise; ≥: at the bound of the search)",
        xlabel="MoE layer",
        yticks=range(len(studies)),
        yticklabels=[study.info.task for study in studies],
    )
    for (row, layer), value in np.ndenumerate(values):
        if np.isnan(value):
            axis.text(layer, row, "–", ha="center", va="center", fontsize=7)
        elif layers <= WRITTEN_LAYERS:
            colour = LIGHT_INK if value < 0.48 * top else DARK_INK
            bound = "≥" if f"layer_{layer}" in studies[row].at_bound else ""
            axis.text(layer, row, f"{bound}{value:.2f}", ha="center", va="center", color=colour, fontsize=6.5)
    return image
