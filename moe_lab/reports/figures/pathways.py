"""Figures of the experts that tokens select: C3PO's pathways (its Figures 1, 7 and 8).

P = re-routed tokens, L = re-mixed layers, E = experts, K = experts of a token.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from moe_lab.metrics.registry import entropy_bits
from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.panels import stacked_panels
from moe_lab.reports.figures.primitives import curve, heatmap
from moe_lab.reports.figures.stored_traces import StoredTraces, chosen_PLK
from moe_lab.reports.figures.style import BLUE, COLOURS, RED

STATES = ("before", "after")
SHOWN_NEIGHBOURS = 3
BEFORE, AFTER = "question, before", "question, after"
LOOKS = {BEFORE: (RED, "-", "o"), AFTER: (BLUE, "-", "o")}
"""Colour, line and dots of the question's weights in each state."""
NEIGHBOUR_COLOURS = (COLOURS[1], COLOURS[2], COLOURS[4])
SAMPLE_COLUMNS = [
    "layer",
    "of",
    "expert",
    "weight",
    "taken",
    "distance",
    "kernel_share",
    "text",
]


class Activation(NamedTuple):
    """How often the experts of a run are selected."""

    run: StoredTraces
    state: str
    """Of STATES."""
    frequency_LE: np.ndarray


def draw_activation(runs: Sequence[StoredTraces]) -> Drawing:
    """How often each expert is selected, before and after optimizing (C3PO, Figure 7).

    Only the re-mixed layers are shown. Two panels per run, before above after. One row per layer
    and expert, with the layer's number and both frequencies.
    """
    activations = []
    rows = []
    for run in runs:
        before_LE = frequency_LE(run, "before")
        after_LE = frequency_LE(run, "after")
        activations.append(Activation(run, "before", before_LE))
        activations.append(Activation(run, "after", after_LE))
        rows += _activation_rows(run, before_LE, after_LE)
    return Drawing(rows, partial(_draw_activations, activations), "Activation of experts")


def _activation_rows(
    run: StoredTraces, before_LE: np.ndarray, after_LE: np.ndarray
) -> list[dict[str, object]]:
    """A row per layer and expert: the frequencies `before` and `after`."""
    rows = []
    for layer, before_E, after_E in zip(run.layers, before_LE, after_LE, strict=True):
        for expert, (before, after) in enumerate(zip(before_E, after_E, strict=True)):
            row = {
                **run.key,
                "layer": layer,
                "expert": expert,
                "before": float(before),
                "after": float(after),
            }
            rows.append(row)
    return rows


def frequency_LE(run: StoredTraces, state: str) -> np.ndarray:
    """float64 [L, E]: the share of tokens that select each expert.

    The shares of a layer add up to K.
    """
    probabilities_PLE = run.probabilities(state)
    taken_PLE = np.zeros_like(probabilities_PLE)
    np.put_along_axis(taken_PLE, chosen_PLK(probabilities_PLE, run.top_k), 1.0, axis=-1)
    return taken_PLE.mean(axis=0)


def _draw_activations(activations: Sequence[Activation], title: str) -> Figure:
    """The figure of `draw_activation`: a heatmap for each activation."""
    heights = [0.16 * len(activation.run.layers) + 0.55 for activation in activations]
    figure, axes = stacked_panels(sum(heights) + 0.6, heights, title)
    top = max(activation.frequency_LE.max() for activation in activations)
    for axis, (run, state, frequencies) in zip(axes, activations, strict=True):
        entropy = f"mean entropy {entropy_bits(frequencies).mean():.3f} bits"
        image = heatmap(
            axis,
            frequencies,
            top,
            title=f"{run.label}, {state} optimization: {entropy}",
            xlabel="expert" if state == STATES[-1] else "",
            ylabel="MoE layer",
            yticks=range(len(run.layers)),
            yticklabels=run.layers,
        )
    aspect = 5 * len(activations)
    figure.colorbar(image, ax=axes, label="share of questions", fraction=0.03, aspect=aspect)
    return figure


def draw_sample(runs: Sequence[StoredTraces]) -> Drawing:
    """One question's routing weights before and after, and its neighbours' (C3PO, Figure 8).

    The last re-routed token and layer of one question of the first run: the first that was wrong
    and became right. One row per weight vector and expert, with the text of the question or
    neighbour.
    """
    run = runs[0]
    question = _first_corrected(run)
    choice = "the first that was wrong and became right"
    if question is None:
        question = 0
        choice = "the first, as none became right"
    frames = _sample_frames(run, question)
    rows = concat(frames, ignore_index=True)[[*run.key, *SAMPLE_COLUMNS]]

    def draw(title: str) -> Figure:
        figure, [axis] = stacked_panels(2.9, [1], f"{title}\n{run.label}: {choice}")
        neighbour_colours = iter(NEIGHBOUR_COLOURS)
        for name, line in rows.groupby("of", sort=False):
            if name in LOOKS:
                colour, style, dot = LOOKS[name]
            else:
                colour = next(neighbour_colours)
                style = "--"
                dot = "."
            taken = line[line["taken"]]
            curve(axis, line, "expert", "weight", colour=colour, style=style, label=str(name))
            curve(axis, taken, "expert", "weight", colour=colour, style=dot, zorder=4)
        axis.set(
            title=f"MoE layer {run.layers[-1]}; dots: the {run.top_k} experts taken",
            xlabel="expert",
            ylabel="routing weight",
            yscale="log",
        )
        axis.locator_params(axis="x", integer=True)
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure

    return Drawing(rows.to_dict("records"), draw, "One question's pathway")


def _first_corrected(run: StoredTraces) -> int | None:
    """The index of the first question that was wrong and became right; None if there is none."""
    for question, right in enumerate(run.right):
        if right[-1] and not right[0]:
            return question
    return None


def _sample_frames(run: StoredTraces, question: int) -> list[DataFrame]:
    """The weights of a question before and after, then its neighbours': a row per expert."""
    trace = run.traces[question]
    prompt = run.prompts[question]
    frames = [
        _weights_frame(run, BEFORE, {"pathway": trace["before"], "text": prompt}),
        _weights_frame(run, AFTER, {"pathway": trace["after"], "text": prompt}),
    ]
    for number, neighbour in enumerate(trace["neighbours"][:SHOWN_NEIGHBOURS], start=1):
        frames.append(_weights_frame(run, f"neighbour {number}", neighbour))
    return frames


def _weights_frame(run: StoredTraces, name: str, vector: Mapping[str, Any]) -> DataFrame:
    """The routing weights of the last re-routed token and layer.

    A neighbour has a distance and a share, too.
    """
    weights = vector["pathway"][-1][-1]
    frame = DataFrame({"expert": range(len(weights)), "weight": weights})
    frame["taken"] = frame["weight"].rank(ascending=False, method="first") <= run.top_k
    return frame.assign(
        **run.key,
        layer=run.layers[-1],
        of=name,
        distance=vector.get("distance"),
        kernel_share=vector.get("weight"),
        text=vector.get("text"),
    )
