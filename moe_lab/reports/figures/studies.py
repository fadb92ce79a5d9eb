"""Figures of tuning: the history, the sweep of one temperature, and temperatures per layer.

They are Figures 6 to 10 of RoE.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.panels import panels_of, stacked_panels
from moe_lab.reports.figures.primitives import curve, heatmap
from moe_lab.reports.figures.stored_studies import StoredStudy
from moe_lab.reports.figures.style import GREEN, GREY, ORANGE, RED
from moe_lab.results.statistics import wilson

WRITTEN_LAYERS = 16
"""Most layers for which each cell of a heatmap shows its number."""


def draw_controls(axis: Axes, study: StoredStudy, untuned: str) -> None:
    """Draw the controls of RoE: the base model, and the base model at its best logit scale."""
    if study.untuned is not None and not study.info.logit_scale:
        axis.axhline(study.untuned, color=GREY, ls="--", lw=1.2, label=untuned)
    if study.calibrated is not None:
        axis.axhline(study.calibrated, color=GREEN, ls=":", lw=1.4, label=f"{untuned}, calibrated")


def draw_history(studies: Sequence[StoredStudy]) -> Drawing:
    """Each trial's value, the best so far, and the untuned model (RoE, Figures 7 to 9).

    One panel per study, one row per finished trial: its value or estimate, and the best value so
    far.
    """
    panels = []
    for study in studies:
        values = study.trials["value"]
        best = values.cummin() if study.info.minimizes else values.cummax()
        rows = study.trials.drop(columns="temperature").assign(
            best=best.ffill(), untuned=study.untuned, calibrated=study.calibrated
        )
        panels.append((study, [study.key | row for row in rows.to_dict("records")]))
    return panels_of(panels, _draw_history, "Optimization history")


def _draw_history(axis: Axes, study: StoredStudy, rows: DataFrame) -> None:
    """The panel of a study: the trials, the best value so far, and the controls."""
    curve(axis, rows, "trial", style="o", ms=3.2, alpha=0.75, label="trial")
    best_look: dict[str, Any] = {"style": "-", "colour": RED, "drawstyle": "steps-post"}
    curve(axis, rows, "trial", "best", label="best so far", **best_look)
    draw_controls(axis, study, "untuned (trial 0)")
    if rows["estimate"].notna().any():
        pruned_look: dict[str, Any] = {"style": "o", "colour": ORANGE, "ms": 3.2, "mfc": "none"}
        curve(axis, rows, "trial", "estimate", label="pruned (of what was scored)", **pruned_look)
    axis.set(title=study.label, xlabel="trial", ylabel=f"validation {study.info.metric}")
    axis.locator_params(axis="x", integer=True)


def draw_sweep(studies: Sequence[StoredStudy]) -> Drawing:
    """One temperature for all layers, swept: the metric against it (RoE, Figure 6).

    One panel per study, one row per complete trial, with Wilson's interval of an accuracy over
    tuning documents.
    """
    panels = []
    for study in studies:
        trials = study.complete[["temperature", "value"]].sort_values("temperature", kind="stable")
        limits = _limits(study, trials)
        rows = trials.assign(
            low=[low for low, _ in limits],
            high=[high for _, high in limits],
            calibrated=study.calibrated,
            documents=study.info.num_samples,
        )
        panels.append((study, [study.key | row for row in rows.to_dict("records")]))
    return panels_of(panels, _draw_sweep, "One temperature for all MoE layers")


def _limits(study: StoredStudy, trials: DataFrame) -> list[tuple[float, float] | tuple[None, None]]:
    """(low, high) of Wilson's interval of each trial's accuracy; (None, None) for another metric,
    and for a single document."""
    documents = study.info.num_samples
    values = trials["value"]
    is_share = study.info.metric == "accuracy" and values.between(0, 1).all()
    if not is_share or documents <= 1:
        return [(None, None)] * len(values)
    return [wilson(round(value * documents), documents) for value in values]


def _draw_sweep(axis: Axes, study: StoredStudy, rows: DataFrame) -> None:
    """The panel of a study: the curve over the temperature, its best point, and the controls."""
    curve(axis, rows, "temperature", ms=3, label="RoE", band="95% interval")
    draw_controls(axis, study, "temperature 0")
    # a trial at the bound of the search may not be the best possible one
    label = "best (at the bound of the search)" if study.at_bound else "best"
    best = rows[rows["value"] == study.best["value"]][:1]
    axis.plot(best["temperature"], best["value"], "*", ms=10, color=RED, label=label)
    axis.set(title=study.label, xlabel="temperature", ylabel=f"validation {study.info.metric}")


def draw_heatmap(studies: Sequence[StoredStudy]) -> Drawing:
    """Tuned temperature per MoE layer and task (RoE, Figure 10).

    One line per study, one panel per model.
    """
    with_profile = [study for study in studies if study.temperatures]
    rows = []
    for study in with_profile:
        for layer, temperature in enumerate(study.temperatures):
            place = {"layer": layer, "temperature": temperature, "skipped": study.is_skipped(layer)}
            rows.append(study.key | place)
    return Drawing(rows, partial(_draw_heatmaps, with_profile), "Tuned temperature per MoE layer")


def _draw_heatmaps(studies: Sequence[StoredStudy], title: str) -> Figure:
    """The figure of `draw_heatmap`: a panel for each model."""
    by_model: dict[str, list[StoredStudy]] = {}
    for study in studies:
        by_model.setdefault(study.info.model, []).append(study)
    heights = [0.28 * len(of_model) + 0.55 for of_model in by_model.values()]
    figure, axes = stacked_panels(sum(heights) + 0.75, heights, title)
    for axis, (model, of_model) in zip(axes, by_model.items(), strict=True):
        _draw_model(figure, axis, model, of_model)
    return figure


def _draw_model(figure: Figure, axis: Axes, model: str, studies: Sequence[StoredStudy]) -> None:
    """The temperatures of one model, with a colour bar of its own."""
    # a colour scale for each model: their searches differ in range (RoE: up to 0.5 and 0.2)
    top = max(study.info.max_temperature for study in studies)
    # studies with fewer layers have NaN in place of the others
    values = DataFrame([_noisy_temperatures(study) for study in studies]).to_numpy()
    axis.set_facecolor("#DDDDDD")
    image = heatmap(
        axis,
        values,
        top,
        title=f"{model} (grey: layer without noise; ≥: at the bound of the search)",
        xlabel="MoE layer",
        yticks=range(len(studies)),
        yticklabels=[study.info.task for study in studies],
    )
    figure.colorbar(image, ax=axis, label="temperature", fraction=0.03, pad=0.01)
    if values.shape[1] > WRITTEN_LAYERS:
        return
    for (row, layer), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        colour = "white" if value < 0.48 * top else "black"
        text = f"{value:.2f}"
        if f"layer_{layer}" in studies[row].at_bound:
            text = f"≥{text}"
        axis.text(layer, row, text, ha="center", va="center", color=colour, fontsize=6.5)


def _noisy_temperatures(study: StoredStudy) -> list[float]:
    """The temperature of each layer; NaN for a layer without noise."""
    temperatures = []
    for layer, temperature in enumerate(study.temperatures):
        temperatures.append(np.nan if study.is_skipped(layer) else temperature)
    return temperatures
