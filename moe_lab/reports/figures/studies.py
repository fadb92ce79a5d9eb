"""Figures of tuning: the history, the sweep of one temperature, and temperatures per layer (RoE, Figures 6 to 10)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import isfinite
from pandas import DataFrame, Series, read_csv

from moe_lab.reports.figures.primitives import curve, heatmap, panels_of, stacked_panels
from moe_lab.reports.figures.style import GREEN, GREY, ORANGE, RED, Drawing
from moe_lab.reports.papers.cells import TableCell
from moe_lab.results.statistics import wilson
from moe_lab.results.stored_files import damaged, read_mapping, typed

# A study as stored in its folder: study.json, trials.csv, best.yaml

COMPLETE, PRUNED = "COMPLETE", "PRUNED"


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

    info: StudyInfo
    trials: DataFrame
    """A row per complete or pruned trial: its number `trial`, `state`, `value`, `estimate` and `temperature`.

    A pruned trial has an estimate instead of a value: the metric over the documents that it scored. `temperature` is
    the one of all layers with tuning=uniform. Missing numbers are NaN.
    """
    temperatures: list[float]
    """Temperatures of the best trial, one per MoE layer; empty without a profile."""
    calibrated: float | None
    """The metric of temperature 0 at its best logit scale: the control for a gain in perplexity."""
    at_bound: list[str]
    """The parameters at the bound of their search according to the profile, such as "layer_3"."""

    @property
    def complete(self) -> DataFrame:
        return self.trials[self.trials["state"] == COMPLETE]

    @property
    def untuned(self) -> float | None:
        """The metric of the untuned model, which is trial 0."""
        return next(iter(self.complete["value"][self.complete["trial"] == 0]), None)

    @property
    def best(self) -> Series:
        """The first complete trial with the best value."""
        values = self.complete["value"]
        return self.complete.loc[
            values.idxmin() if self.info.direction == "minimize" else values.idxmax()
        ]

    @property
    def label(self) -> str:
        """Model, task and tuning documents, for a panel's title."""
        info = self.info
        cache = "" if info.cache == "clean" else f",\n{info.cache} cache"
        return f"{info.model}, {info.task}\n(n={info.n}, {info.num_samples} documents{cache})"

    @property
    def key(self) -> dict[str, object]:
        """The columns that name the study in a CSV."""
        names = ("model", "task", "tuning", "metric", "n", "cache")
        return {name: getattr(self.info, name) for name in names}


def studies_of(cells: Sequence[TableCell]) -> list[StoredStudy]:
    """The studies of the cells that have a complete trial, each once."""
    folders = dict.fromkeys(folder for cell in cells for folder in cell.studies)
    return [study for study in map(read_study, folders) if len(study.complete)]


def read_study(folder: Path) -> StoredStudy:
    """Read a study's folder; best.yaml is missing until trial 0 ends."""
    file = folder / "study.json"
    try:
        info: StudyInfo = typed(StudyInfo, read_mapping(file) or {})
        file = folder / "trials.csv"
        trials = read_csv(file)
        trials = trials.rename(columns={"number": "trial", "params_temperature": "temperature"})
        trials = trials[trials["state"].isin((COMPLETE, PRUNED))].sort_values(
            "trial", ignore_index=True
        )
        trials = trials.reindex(columns=["trial", "state", "value", "estimate", "temperature"])
        trials = trials.astype({"trial": int, "value": float, "temperature": float})
    except (OSError, ValueError, KeyError) as error:
        raise damaged(file, error) from error
    complete = (trials["state"] == COMPLETE) & isfinite(trials["value"])
    trials["state"] = trials["state"].where(complete, PRUNED)
    trials["estimate"] = trials["value"].mask(complete)
    trials["value"] = trials["value"].where(complete)
    best = read_mapping(folder / "best.yaml") or {}
    return StoredStudy(
        info=info,
        trials=trials,
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


def draw_history(studies: Sequence[StoredStudy]) -> Drawing:
    """Optimization history: each trial's value, the best so far, the untuned model (RoE, Figures 7 to 9).

    One panel per study, one row per finished trial: its value or estimate, and the best value so far.
    """
    panels = []
    for study in studies:
        values = study.trials["value"]
        best = (values.cummin() if study.info.direction == "minimize" else values.cummax()).ffill()
        controls = {"untuned": study.untuned, "calibrated": study.calibrated}
        rows = study.trials.drop(columns="temperature").assign(best=best, **controls)
        panels.append((study, [study.key | row for row in rows.to_dict("records")]))
    return panels_of(panels, _draw_history, "Optimization history")


def _draw_history(axis: Axes, study: StoredStudy, rows: DataFrame) -> None:
    curve(axis, rows, "trial", style="o", ms=3.2, alpha=0.75, label="trial")
    curve(
        axis,
        rows,
        "trial",
        "best",
        style="-",
        colour=RED,
        drawstyle="steps-post",
        label="best so far",
    )
    draw_controls(axis, study, "untuned (trial 0)")
    if rows["estimate"].notna().any():
        label = "pruned (of what was scored)"
        curve(
            axis,
            rows,
            "trial",
            "estimate",
            style="o",
            colour=ORANGE,
            ms=3.2,
            mfc="none",
            label=label,
        )
    axis.set(title=study.label, xlabel="trial", ylabel=f"validation {study.info.metric}")
    axis.locator_params(axis="x", integer=True)


def draw_sweep(studies: Sequence[StoredStudy]) -> Drawing:
    """One temperature for all layers, swept: the metric against it (RoE, Figure 6).

    One panel per study, one row per complete trial, with Wilson's interval of an accuracy over tuning documents.
    """
    panels = []
    for study in studies:
        trials = study.complete[["temperature", "value"]].sort_values("temperature", kind="stable")
        count = study.info.num_samples
        share = (
            study.info.metric == "accuracy" and count > 1 and trials["value"].between(0, 1).all()
        )
        limits = [
            wilson(round(v * count), count) if share else (None, None) for v in trials["value"]
        ]
        low, high = zip(*limits, strict=True)
        rows = trials.assign(low=low, high=high, calibrated=study.calibrated, documents=count)
        panels.append((study, [study.key | row for row in rows.to_dict("records")]))
    return panels_of(panels, _draw_sweep, "One temperature for all MoE layers")


def _draw_sweep(axis: Axes, study: StoredStudy, rows: DataFrame) -> None:
    curve(axis, rows, "temperature", ms=3, label="RoE", band="95% interval")
    draw_controls(axis, study, "temperature 0")
    # a trial at the bound of the search may not be the best possible one
    label = "best (at the bound of the search)" if study.at_bound else "best"
    best = rows[rows["value"] == study.best["value"]][:1]
    axis.plot(best["temperature"], best["value"], "*", ms=10, color=RED, label=label)
    axis.set(title=study.label, xlabel="temperature", ylabel=f"validation {study.info.metric}")


WRITTEN_LAYERS = 16
"""Most layers for which each cell shows its number."""


def draw_heatmap(studies: Sequence[StoredStudy]) -> Drawing:
    """Tuned temperature per MoE layer and task: one line per study, one panel per model (RoE, Figure 10)."""
    with_profile = [study for study in studies if study.temperatures]
    rows = [
        {**study.key, "layer": layer, "temperature": temperature, "skipped": _skipped(study, layer)}
        for study in with_profile
        for layer, temperature in enumerate(study.temperatures)
    ]
    return Drawing(rows, partial(_draw, with_profile), "Tuned temperature per MoE layer")


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
        values = DataFrame(
            [
                np.nan if _skipped(study, layer) else one
                for layer, one in enumerate(study.temperatures)
            ]
            for study in group
        ).to_numpy()
        axis.set_facecolor("#DDDDDD")
        image = heatmap(
            axis,
            values,
            top,
            title=f"{model} (grey: layer without noise; ≥: at the bound of the search)",
            xlabel="MoE layer",
            yticks=range(len(group)),
            yticklabels=[study.info.task for study in group],
        )
        figure.colorbar(image, ax=axis, label="temperature", fraction=0.03, pad=0.01)
        for (row, layer), value in np.ndenumerate(values):
            if values.shape[1] <= WRITTEN_LAYERS and not np.isnan(value):
                colour = "white" if value < 0.48 * top else "black"
                text = f"{'≥' * (f'layer_{layer}' in group[row].at_bound)}{value:.2f}"
                axis.text(layer, row, text, ha="center", va="center", color=colour, fontsize=6.5)
    return figure
