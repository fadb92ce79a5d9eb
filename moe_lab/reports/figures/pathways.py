"""Figures of the experts that tokens select: C3PO's pathways (its Figures 1, 7 and 8)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from moe_lab.metrics.registry import entropy_bits
from moe_lab.reports.figures.primitives import curve, heatmap, stacked_panels
from moe_lab.reports.figures.style import BLUE, COLOURS, RED, Drawing
from moe_lab.reports.figures.traces import StoredTraces, chosen_PLK

# P = re-routed tokens, L = re-mixed layers, E = experts, K = experts of a token.

STATES = ("before", "after")


def draw_activation(runs: Sequence[StoredTraces]) -> Drawing:
    """How often each expert is selected in the re-mixed layers, before and after optimizing (C3PO, Figure 7).

    Two panels per run, before above after. One row per layer and expert, with the layer's number and both frequencies.
    """
    shown = [(run, state, frequency_LE(run, state)) for run in runs for state in STATES]
    rows = [
        {
            **run.key,
            "layer": layer,
            "expert": expert,
            "before": float(before),
            "after": float(after),
        }
        for (run, _, before_LE), (_, _, after_LE) in zip(shown[::2], shown[1::2], strict=True)
        for layer, *shares in zip(run.layers, before_LE, after_LE, strict=True)
        for expert, (before, after) in enumerate(zip(*shares, strict=True))
    ]
    return Drawing(rows, partial(_activation_draw, shown), "Activation of experts")


def frequency_LE(run: StoredTraces, state: str) -> np.ndarray:
    """float64 [L, E]: the share of tokens that select each expert; the shares of a layer add up to K."""
    probabilities_PLE = run.probabilities(state)
    taken_PLE = np.zeros_like(probabilities_PLE)
    np.put_along_axis(taken_PLE, chosen_PLK(probabilities_PLE, run.top_k), 1.0, axis=-1)
    return taken_PLE.mean(axis=0)


def _activation_draw(shown: Sequence[tuple[StoredTraces, str, np.ndarray]], title: str) -> Figure:
    heights = [0.16 * len(run.layers) + 0.55 for run, *_ in shown]
    figure, axes = stacked_panels(sum(heights) + 0.6, heights, title)
    top = max(values.max() for *_, values in shown)
    for axis, (run, state, values) in zip(axes, shown, strict=True):
        entropy = f"mean entropy {entropy_bits(values).mean():.3f} bits"
        image = heatmap(
            axis,
            values,
            top,
            title=f"{run.label}, {state} optimization: {entropy}",
            xlabel="expert" if state == STATES[-1] else "",
            ylabel="MoE layer",
            yticks=range(len(run.layers)),
            yticklabels=run.layers,
        )
    figure.colorbar(
        image, ax=axes, label="share of questions", fraction=0.03, aspect=5 * len(shown)
    )
    return figure


SHOWN_NEIGHBOURS = 3
BEFORE, AFTER = "question, before", "question, after"


def draw_sample(runs: Sequence[StoredTraces]) -> Drawing:
    """One question's routing weights before and after, next to those of its neighbours (C3PO, Figure 8).

    The last re-routed token and layer of one question of the first run: the first that was wrong and became right. One
    row per weight vector and expert, with the text of the question or neighbour.
    """
    run = runs[0]
    corrected = next(
        (i for i, states in enumerate(run.right) if states[-1] and not states[0]), None
    )
    chosen = "the first, as none" if corrected is None else "the first that was wrong and"
    trace, prompt = run.traces[corrected or 0], run.prompts[corrected or 0]
    vectors = [(BEFORE, {"pathway": trace["before"], "text": prompt})]
    vectors += [(AFTER, {"pathway": trace["after"], "text": prompt})]
    neighbours = enumerate(trace["neighbours"][:SHOWN_NEIGHBOURS], start=1)
    vectors += [(f"neighbour {i}", one) for i, one in neighbours]
    frames = []
    for who, vector in vectors:
        weights = vector["pathway"][-1][-1]
        frame = DataFrame({"expert": range(len(weights)), "weight": weights})
        frame["taken"] = frame["weight"].rank(ascending=False, method="first") <= run.top_k
        distance, share, text = (vector.get(key) for key in ("distance", "weight", "text"))
        near = {"distance": distance, "kernel_share": share, "text": text}
        frames.append(frame.assign(**run.key, layer=run.layers[-1], of=who, **near))
    names = [
        *run.key,
        "layer",
        "of",
        "expert",
        "weight",
        "taken",
        "distance",
        "kernel_share",
        "text",
    ]
    rows = concat(frames, ignore_index=True)[names]

    def draw(title: str) -> Figure:
        figure, [axis] = stacked_panels(2.9, [1], f"{title}\n{run.label}: {chosen} became right")
        looks = {BEFORE: (RED, "-", "o"), AFTER: (BLUE, "-", "o")}
        others = iter((COLOURS[1], COLOURS[2], COLOURS[4]))
        for name, line in rows.groupby("of", sort=False):
            colour, style, dot = looks.get(str(name)) or (next(others), "--", ".")
            curve(axis, line, "expert", "weight", colour=colour, style=style, label=str(name))
            curve(axis, line[line["taken"]], "expert", "weight", colour=colour, style=dot, zorder=4)
        taken = f"MoE layer {run.layers[-1]}; dots: the {run.top_k} experts taken"
        axis.set(title=taken, xlabel="expert", ylabel="routing weight", yscale="log")
        axis.locator_params(axis="x", integer=True)
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure

    return Drawing(rows.to_dict("records"), draw, "One question's pathway")
