"""Accuracy after every optimization step, and answers that became right or wrong (C3PO, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.stored_traces import StoredTraces
from moe_lab.reports.figures.style import BLUE, GREEN, GREY, ORANGE, RED, legend_below, panels, write_figure
from moe_lab.results.statistics import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_steps(
    runs: Sequence[StoredTraces], folder: Path, stem: str, title: str = "Optimization steps"
) -> list[Path]:
    """Three panels per run: accuracy, changed answers, and the loss on the neighbours."""
    rows = [row for run in runs for row in step_rows(run)]
    return write_figure(lambda: _draw(runs, title), rows, folder, stem)


def step_rows(run: StoredTraces) -> list[dict[str, Any]]:
    """One row per step; step 0 is the untouched pathway.

    `became_wrong` is a share of the questions that were right at first, `became_right` of those that were wrong; None
    without such questions. `loss` is the mean over the questions that have neighbours.
    """
    first = [states[0] for states in run.right]
    rows = []
    for step in range(len(run.right[0])):
        now = [states[step] for states in run.right]
        low, high = interval([int(each) for each in now]) or (None, None)
        losses = [trace["losses"][step] for trace in run.traces if trace["losses"][step] is not None]
        rows.append(
            {
                **run.key,
                "step": step,
                "accuracy": sum(now) / len(now),
                "low": low,
                "high": high,
                "became_wrong": _share([not each for each, before in zip(now, first, strict=True) if before]),
                "became_right": _share([each for each, before in zip(now, first, strict=True) if not before]),
                "right_at_first": sum(first),
                "questions": len(now),
                "loss": sum(losses) / len(losses) if losses else None,
            }
        )
    return rows


def _share(flags: list[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def _draw(runs: Sequence[StoredTraces], title: str) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, axes = panels(3 * len(runs), height=2.4)
    figure.suptitle(title)
    for index, run in enumerate(runs):
        rows = step_rows(run)
        for axis, draw in zip(axes[3 * index :], (_accuracy, _flips, _loss), strict=False):
            draw(axis, rows)
            axis.set_xlabel("step")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[3 * index].set_title(run.label.replace(" (", "\n("))
    legend_below(figure, axes)
    return figure


def _accuracy(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    steps = [row["step"] for row in rows]
    axis.plot(steps, [row["accuracy"] for row in rows], "o-", color=BLUE, label="accuracy, 95% interval")
    if rows[0]["low"] is not None:
        lows, highs = [row["low"] for row in rows], [row["high"] for row in rows]
        axis.fill_between(steps, lows, highs, color=BLUE, alpha=0.15, lw=0)
    axis.axhline(rows[0]["accuracy"], color=GREY, ls=":", lw=1.2, label="untouched pathway")
    axis.set_ylabel("accuracy")


def _flips(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    right, count = rows[0]["right_at_first"], rows[0]["questions"]
    for name, colour, marker, label in (
        ("became_right", GREEN, "^", "wrong at first, right now"),
        ("became_wrong", RED, "v", "right at first, wrong now"),
    ):
        if rows[0][name] is not None:
            shares = [row[name] for row in rows]
            axis.plot([row["step"] for row in rows], shares, f"{marker}-", color=colour, label=label)
    axis.set(
        title=f"changed answers\n(of {count - right} wrong, {right} right at first)",
        ylabel="share",
        ylim=(0, None),
    )


def _loss(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    measured = [row for row in rows if row["loss"] is not None]
    axis.plot(
        [row["step"] for row in measured], [row["loss"] for row in measured], "s-", color=ORANGE, label="loss"
    )
    axis.set(title="loss on the neighbours", ylabel="mean loss")
