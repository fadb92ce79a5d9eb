"""Figures of C3PO's traces: numbers by step, and the share of experts retained.

They are Figures 6 and 5 of C3PO.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.panels import panel_per, panels_of
from moe_lab.reports.figures.primitives import curve
from moe_lab.reports.figures.stored_traces import StoredTraces, chosen_PLK
from moe_lab.reports.figures.style import BLUE, GREEN, GREY, ORANGE, RED, step_axis
from moe_lab.results.statistics import bootstrap_interval, score_interval

STEP_PANELS = {
    "accuracy": {"accuracy": (BLUE, "o-")},
    "changed answers": {"became_right": (GREEN, "^-"), "became_wrong": (RED, "v-")},
    "loss on the neighbours": {"loss": (ORANGE, "s-")},
}
"""The columns of each panel, with their looks."""


def draw_steps(runs: Sequence[StoredTraces]) -> Drawing:
    """Accuracy, answers that became right or wrong, and loss by optimization step (C3PO, Figure 6).

    Three panels per run.
    """
    rows = []
    panels = []
    for run in runs:
        rows += step_rows(run)
        for name in STEP_PANELS:
            panels.append((run, name))

    def draw(title: str) -> Figure:
        return panel_per(panels, title, _draw_steps, height=2.4)

    return Drawing(rows, draw, "Optimization steps")


def _draw_steps(axis: Axes, run: StoredTraces, panel: str) -> None:
    """The panel of a run: the columns of STEP_PANELS[panel] by step."""
    rows = DataFrame(step_rows(run), dtype=object)
    for column, (colour, style) in STEP_PANELS[panel].items():
        # the interval is that of the accuracy
        shown = rows if column == "accuracy" else rows.drop(columns=["low", "high"])
        label = column.replace("_", " ")
        curve(axis, shown, "step", column, colour=colour, style=style, label=label)
    step_axis(axis, "step")
    axis.set(title=f"{run.label}\n{panel}")


def step_rows(run: StoredTraces) -> list[dict[str, Any]]:
    """One row per step; step 0 is the unchanged pathway.

    `became_wrong` is a share of the questions that were right at first, `became_right` of those
    that were wrong; None without such questions. `loss` is the mean over the questions that have
    neighbours.
    """
    right_SN = list(zip(*run.right, strict=True))
    right_at_first = right_SN[0]
    rows = []
    for step, right in enumerate(right_SN):
        low, high = score_interval([int(is_right) for is_right in right]) or (None, None)
        became_right = []
        became_wrong = []
        for was_right, is_right in zip(right_at_first, right, strict=True):
            if was_right:
                became_wrong.append(not is_right)
            else:
                became_right.append(is_right)
        losses = [trace["losses"][step] for trace in run.traces]
        row = {
            "step": step,
            "accuracy": _mean(right),
            "low": low,
            "high": high,
            "became_wrong": _mean(became_wrong),
            "became_right": _mean(became_right),
            "right_at_first": sum(right_at_first),
            "questions": len(right),
            "loss": _mean([loss for loss in losses if loss is not None]),
        }
        rows.append(run.key | row)
    return rows


def _mean(values: Sequence[float]) -> float | None:
    """The mean; None without values."""
    if not values:
        return None
    return sum(values) / len(values)


def draw_retained(runs: Sequence[StoredTraces]) -> Drawing:
    """The share of selected experts that the router had ranked among its first n (C3PO, Figure 5).

    The experts are those selected after optimizing the weights of all experts. One panel per run;
    runs that optimized some of the experts only are left out.
    """
    panels = [(run, retained_rows(run)) for run in runs if run.all_experts]
    return panels_of(panels, _draw_retained, "Core experts")


def retained_rows(run: StoredTraces) -> list[dict[str, Any]]:
    """One row per n from 1 to E: the mean share, with a bootstrap interval.

    The mean is over questions, tokens and layers.
    """
    before_PLE = run.probabilities("before")
    rank_PLE = (-before_PLE).argsort(axis=-1, kind="stable").argsort(axis=-1)
    after_PLK = chosen_PLK(run.probabilities("after"), run.top_k)
    rank_PLK = np.take_along_axis(rank_PLE, after_PLK, axis=-1)
    tokens_N = np.bincount(run.question_P)
    rows = []
    for n in range(1, before_PLE.shape[-1] + 1):
        share_P = (rank_PLK < n).mean(axis=(1, 2))
        share_N = np.bincount(run.question_P, weights=share_P) / tokens_N
        low, high = bootstrap_interval(share_N) if len(share_N) > 1 else (None, None)
        row = {
            "n": n,
            "share": float(share_N.mean()),
            "low": low,
            "high": high,
            "questions": len(share_N),
        }
        rows.append(run.key | row)
    return rows


def _draw_retained(axis: Axes, run: StoredTraces, rows: DataFrame) -> None:
    """The panel of a run: the mean share by n."""
    curve(axis, rows, "n", "share", ms=3, label="mean", band="95% interval")
    axis.axvline(run.top_k, color=GREY, ls=":", lw=1.2, label=f"the {run.top_k} experts of a token")
    step_axis(axis, "n: first experts by the router")
    axis.set(title=run.label, ylabel="share among the first n", ylim=(0, 1.03))
