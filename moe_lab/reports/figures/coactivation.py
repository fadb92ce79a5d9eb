"""The experts that each MoE layer selects, alone and in pairs (MoE-Bench, section 4.1).

L = MoE layers, E = experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.metrics.stored import COUNTS, FOLDER
from moe_lab.reports.figures.style import PAGE_WIDTH, panels, write_figure

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "cividis"
PANELS = 24
"""Most layers that are legible on a page; of more layers, so many evenly spaced ones are shown."""


def write_coactivation(folder: Path, experts: Sequence[int]) -> list[Path]:
    """Draw a run's counts into `figures/` as `coactivation` and `selections`; returns PNG, CSV, PNG, CSV.

    `experts` are the number of experts of each layer. Prompts and answers count together.
    """
    from safetensors.numpy import load_file

    counts = load_file(folder / FOLDER / COUNTS)
    pairs_LEE = counts["pairs.prefill"] + counts["pairs.decode"]
    share_LE = _shares(counts["selections.prefill"] + counts["selections.decode"])
    rows = selection_rows(share_LE, experts)
    together = pair_rows(pairs_LEE, experts) or [dict.fromkeys(PAIR_COLUMNS)]
    return [
        *write_figure(
            lambda: _draw_pairs(_shares(pairs_LEE), experts), together, folder / "figures", "coactivation"
        ),
        *write_figure(lambda: _draw_selections(share_LE), rows, folder / "figures", "selections"),
    ]


PAIR_COLUMNS = ("layer", "expert", "other", "tokens", "probability")


def pair_rows(pairs_LEE: np.ndarray, experts: Sequence[int]) -> list[dict[str, object]]:
    """One row per layer and ordered pair that was selected together: tokens, and P(other | expert)."""
    share_LEE = _shares(pairs_LEE)
    return [
        dict(
            zip(
                PAIR_COLUMNS,
                (layer, i, j, int(pairs_LEE[layer, i, j]), float(share_LEE[layer, i, j])),
                strict=True,
            )
        )
        for layer, count in enumerate(experts)
        for i in range(count)
        for j in range(count)
        if pairs_LEE[layer, i, j]
    ]


def selection_rows(share_LE: np.ndarray, experts: Sequence[int]) -> list[dict[str, object]]:
    """One row per layer and expert: its share of the layer's selections."""
    return [
        {"layer": layer, "expert": expert, "share": float(share_LE[layer, expert])}
        for layer, count in enumerate(experts)
        for expert in range(count)
    ]


def _shares(counts: np.ndarray) -> np.ndarray:
    """Counts divided by the sum over their last axis; 0 where the sum is 0."""
    return counts / counts.sum(axis=-1, keepdims=True).clip(min=1)


def _draw_pairs(share_LEE: np.ndarray, experts: Sequence[int]) -> Figure:
    layers = list(range(len(experts)))
    step = -(-len(layers) // PANELS)
    figure, axes = panels(len(layers[::step]), height=2.2)
    figure.suptitle("Experts selected together: P(other | expert)")
    top = share_LEE.max() or 1.0
    for axis, layer in zip(axes, layers[::step], strict=True):
        count = experts[layer]
        image = axis.imshow(
            share_LEE[layer, :count, :count], cmap=COLOURS, vmin=0, vmax=top, interpolation="none"
        )
        axis.set(title=f"MoE layer {layer}", xlabel="other expert", ylabel="expert")
        _plain(axis)
    figure.colorbar(image, ax=axes, label="probability", fraction=0.03, aspect=30)
    return figure


def _draw_selections(share_LE: np.ndarray) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_WIDTH, 0.16 * len(share_LE) + 1.1), layout="constrained")
    axis = figure.subplots()
    figure.suptitle("Share of each expert in its layer's selections")
    image = axis.imshow(share_LE, cmap=COLOURS, vmin=0, aspect="auto", interpolation="none")
    axis.set(xlabel="expert", ylabel="MoE layer")
    _plain(axis)
    figure.colorbar(image, ax=axis, label="share", fraction=0.03)
    return figure


def _plain(axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.grid(False)
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(MaxNLocator(integer=True))
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
