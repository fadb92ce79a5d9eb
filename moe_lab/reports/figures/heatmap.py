"""Tuned temperature per MoE layer and task, one panel per model (RoE, Figure 10)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.stored_study import StoredStudy
from moe_lab.reports.figures.style import PAGE_WIDTH, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLOURS = "cividis"
WRITTEN_LAYERS = 16
"""Most layers for which each cell shows its number."""


def write_heatmap(
    studies: Sequence[StoredStudy], folder: Path, stem: str, title: str = "Tuned temperature per MoE layer"
) -> list[Path]:
    """One row per study, one panel per model; returns the PNG and the CSV."""
    with_profile = [study for study in studies if study.temperatures]
    rows = [row for study in with_profile for row in _rows(study)]
    return write_figure(lambda: _draw(with_profile, title), rows, folder, stem)


def _rows(study: StoredStudy) -> list[dict[str, Any]]:
    return [
        {**study.key, "layer": layer, "temperature": temperature, "skipped": _skipped(study, layer)}
        for layer, temperature in enumerate(study.temperatures)
    ]


def _skipped(study: StoredStudy, layer: int) -> bool:
    skip = int(study.info["skip_layers"])
    return not skip <= layer < len(study.temperatures) - skip


def _draw(studies: Sequence[StoredStudy], title: str) -> Figure:
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(study.info["model"] for study in studies))
    grouped = [[study for study in studies if study.info["model"] == model] for model in models]
    heights = [0.28 * len(group) + 0.55 for group in grouped]
    figure = Figure(figsize=(PAGE_WIDTH, sum(heights) + 0.75), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(models), 1, squeeze=False, height_ratios=heights).ravel()
    top = max(float(study.info["max_temperature"]) for study in studies)
    for axis, model, group in zip(axes, models, grouped, strict=True):
        image = _draw_model(axis, model, group, top)
    figure.colorbar(image, ax=list(axes), label="temperature", fraction=0.03, aspect=max(8, 10 * len(models)))
    return figure


def _draw_model(axis: Axes, model: str, studies: Sequence[StoredStudy], top: float) -> AxesImage:
    import numpy as np

    layers = max(len(study.temperatures) for study in studies)
    values = np.full((len(studies), layers), np.nan)
    for row, study in enumerate(studies):
        for layer, temperature in enumerate(study.temperatures):
            if not _skipped(study, layer):
                values[row, layer] = temperature
    axis.grid(False)
    axis.set_facecolor("#DDDDDD")
    image = axis.imshow(values, cmap=COLOURS, vmin=0, vmax=top, aspect="auto")
    for (row, layer), value in np.ndenumerate(values):
        if np.isnan(value):
            axis.text(layer, row, "–", ha="center", va="center", color="#555555", fontsize=7)
        elif layers <= WRITTEN_LAYERS:
            colour = "white" if value < 0.55 * top else "black"
            bound = "≥" if f"layer_{layer}" in studies[row].at_bound else ""
            axis.text(layer, row, f"{bound}{value:.2f}", ha="center", va="center", color=colour, fontsize=6.5)
    axis.set(
        title=f"{model} (–: layer without noise; ≥: at the bound of the search)",
        xlabel="MoE layer",
        xticks=range(0, layers, 1 if layers <= 24 else 2),
        yticks=range(len(studies)),
        yticklabels=[study.info["task"] for study in studies],
    )
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return image
