"""How often each expert is selected in the re-mixed layers, before and after optimizing (C3PO, Figure 7).

P = re-routed tokens, L = re-mixed layers, E = experts, K = experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.stored_traces import StoredTraces, chosen_PLK
from moe_lab.reports.figures.style import PAGE_WIDTH, write_figure

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

STATES = ("before", "after")
COLOURS = "cividis"


def write_activation(
    runs: Sequence[StoredTraces], folder: Path, stem: str, title: str = "Activation of experts"
) -> list[Path]:
    """Two panels per run, before above after."""
    rows = [row for run in runs for row in activation_rows(run)]
    return write_figure(lambda: _draw(runs, title), rows, folder, stem)


def frequency_LE(run: StoredTraces, state: str) -> np.ndarray:
    """float64 [L, E]: the share of tokens that select each expert; the shares of a layer add up to K."""
    import numpy as np

    probabilities_PLE = run.probabilities(state)
    taken_PLE = np.zeros_like(probabilities_PLE)
    np.put_along_axis(taken_PLE, chosen_PLK(probabilities_PLE, run.top_k), 1.0, axis=-1)
    return taken_PLE.mean(axis=0)


def entropy_bits(frequency: np.ndarray) -> float:
    """Mean over layers of the entropy of frequencies [L, E]: log2(E) for equal ones, lower for concentrated ones."""
    import numpy as np

    share = frequency / frequency.sum(axis=-1, keepdims=True)
    return float(-(share * np.log2(np.where(share > 0, share, 1.0))).sum(axis=-1).mean())


def activation_rows(run: StoredTraces) -> list[dict[str, Any]]:
    """One row per layer and expert, with the layer's number and both frequencies."""
    before, after = (frequency_LE(run, state) for state in STATES)
    return [
        {
            **run.key,
            "layer": layer,
            "expert": expert,
            "before": float(before[row, expert]),
            "after": float(after[row, expert]),
        }
        for row, layer in enumerate(run.layers)
        for expert in range(before.shape[-1])
    ]


def _draw(runs: Sequence[StoredTraces], title: str) -> Figure:
    from matplotlib.figure import Figure

    heights = [0.16 * len(run.layers) + 0.55 for run in runs for _ in STATES]
    figure = Figure(figsize=(PAGE_WIDTH, sum(heights) + 0.6), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights).ravel()
    top = max(frequency_LE(run, state).max() for run in runs for state in STATES)
    for axis, (run, state) in zip(axes, ((run, state) for run in runs for state in STATES), strict=True):
        image = _draw_state(axis, run, state, top)
    figure.colorbar(image, ax=list(axes), label="share of questions", fraction=0.03, aspect=10 * len(runs))
    return figure


def _draw_state(axis: Axes, run: StoredTraces, state: str, top: float) -> AxesImage:
    values = frequency_LE(run, state)
    axis.grid(False)
    image = axis.imshow(values, cmap=COLOURS, vmin=0, vmax=top, aspect="auto")
    axis.set(
        title=f"{run.label}, {state} optimization: mean entropy {entropy_bits(values):.3f} bits",
        xlabel="expert" if state == STATES[-1] else "",
        ylabel="MoE layer",
        xticks=range(0, values.shape[-1], 1 if values.shape[-1] <= 24 else 4),
        yticks=range(len(run.layers)),
        yticklabels=run.layers,
    )
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return image
