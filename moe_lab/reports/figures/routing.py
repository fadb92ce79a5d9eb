"""Figures of metrics=expert: the experts that each MoE layer selects, alone and in pairs, and its
metrics (MoE-Bench, section 4.1).

L = MoE layers, E = experts.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from safetensors.numpy import load_file

from moe_lab.metrics.registry import counted_metrics
from moe_lab.metrics.stored import COUNTS, FOLDER, StoredMetrics
from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.panels import panels, stacked_panels
from moe_lab.reports.figures.primitives import heatmap

MOST_PANELS = 24
"""Most layers that are legible on a page. Of a deeper model, evenly spaced layers are shown."""


def write_routing_figures(folder: Path, metrics: StoredMetrics) -> list[Path]:
    """Draw the expert metrics of a run into its `figures/`.

    `selections`: the share of each expert in its layer's selections. `coactivation`: for each
    ordered pair of experts of a layer, P(other | expert), how often both were selected among the
    selections of the first. `expert_metrics`: each counted metric by layer. Prompts and answers
    count together.

    Returns the paths, each PNG followed by its CSV.
    """
    counts = load_file(folder / FOLDER / COUNTS)
    pairs_LEE = counts["pairs.prefill"] + counts["pairs.decode"]
    selections_LE = counts["selections.prefill"] + counts["selections.decode"]
    figures = folder / "figures"
    drawings = {
        "selections": draw_selections(selections_LE, metrics.experts),
        "coactivation": draw_coactivation(pairs_LEE, metrics.experts),
        "expert_metrics": draw_expert_metrics(metrics),
    }
    paths = []
    for name, drawing in drawings.items():
        paths += drawing.save(figures, name)
    return paths


def draw_selections(selections_LE: np.ndarray, experts: Sequence[int]) -> Drawing:
    """The share of each expert in its layer's selections.

    Args:
        selections_LE: how often each expert was selected; 0 for experts that a layer lacks.
        experts: the number of experts of each layer.
    """
    share_LE = shares(selections_LE)
    rows: list[dict[str, object]] = []
    for layer, count in enumerate(experts):
        for expert in range(count):
            share = float(share_LE[layer, expert])
            rows.append({"layer": layer, "expert": expert, "share": share})
    return Drawing(rows, partial(_draw_selections, share_LE), "Selections of experts")


def draw_coactivation(pairs_LEE: np.ndarray, experts: Sequence[int]) -> Drawing:
    """The experts that are selected together. One row for each ordered pair that was.

    Args:
        pairs_LEE: tokens for which a layer selected both experts.
        experts: the number of experts of each layer.
    """
    probability_LEE = shares(pairs_LEE)
    rows: list[dict[str, object]] = []
    for layer, expert, other in np.argwhere(pairs_LEE).tolist():
        row: dict[str, object] = {
            "layer": layer,
            "expert": expert,
            "other": other,
            "tokens": int(pairs_LEE[layer, expert, other]),
            "probability": float(probability_LEE[layer, expert, other]),
        }
        rows.append(row)
    draw = partial(_draw_pairs, probability_LEE, experts)
    return Drawing(rows, draw, "Experts selected together")


def draw_expert_metrics(metrics: StoredMetrics) -> Drawing:
    """Each counted metric by MoE layer, of all tokens. One row for each metric and layer."""
    values_by_name: dict[str, list[float | None]] = {}
    rows: list[dict[str, object]] = []
    for name in counted_metrics():
        values = metrics.layers(name)
        if not values:
            continue
        values_by_name[name] = values
        for layer, value in enumerate(values):
            rows.append({"metric": name, "layer": layer, "value": value})
    return Drawing(rows, partial(_draw_metrics, values_by_name), "Expert metrics by layer")


def shares(counts: np.ndarray) -> np.ndarray:
    """Counts divided by the sum over their last axis; 0 where the sum is 0."""
    return counts / counts.sum(axis=-1, keepdims=True).clip(min=1)


def _draw_selections(share_LE: np.ndarray, title: str) -> Figure:
    figure, [axis] = stacked_panels(0.16 * len(share_LE) + 1.1, [1], title)
    image = heatmap(axis, share_LE, None, xlabel="expert", ylabel="MoE layer")
    figure.colorbar(image, ax=axis, label="share", fraction=0.03)
    return figure


def _draw_pairs(probability_LEE: np.ndarray, experts: Sequence[int], title: str) -> Figure:
    step = -(-len(experts) // MOST_PANELS)
    shown_layers = range(0, len(experts), step)
    figure, axes = panels(len(shown_layers), height=2.2)
    figure.suptitle(title)
    largest = probability_LEE.max() or 1.0
    for axis, layer in zip(axes, shown_layers, strict=True):
        count = experts[layer]
        image = heatmap(
            axis,
            probability_LEE[layer, :count, :count],
            largest,
            title=f"MoE layer {layer}",
            xlabel="other expert",
            ylabel="expert",
        )
    figure.colorbar(image, ax=axes, label="P(other | expert)", fraction=0.03, aspect=30)
    return figure


def _draw_metrics(values_by_name: dict[str, list[float | None]], title: str) -> Figure:
    """A row of colours for each metric, on a scale of its own."""
    count = len(values_by_name)
    figure, axes = stacked_panels(0.75 * count + 0.5, [1] * count, title)
    for axis, (name, values) in zip(axes, values_by_name.items(), strict=True):
        label = name.replace("_", " ")
        image = heatmap(axis, np.array([values], dtype=float), None, title=label)
        axis.set_yticks([])
        figure.colorbar(image, ax=axis, fraction=0.03)
    axes[-1].set_xlabel("MoE layer")
    return figure
