"""The share of experts selected after optimizing all of them that the router had ranked among its first n (C3PO,
Figure 5).

P = re-routed tokens, L = re-mixed layers, E = experts, K = experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.stored_traces import StoredTraces, chosen_PLK
from moe_lab.reports.figures.style import BLUE, GREY, panel_per, write_figure
from moe_lab.results.statistics import bootstrap_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_retained(
    runs: Sequence[StoredTraces], folder: Path, stem: str, title: str = "Core experts"
) -> list[Path]:
    """One panel per run; runs that optimized some of the experts only are left out."""
    whole = [run for run in runs if run.all_experts]
    rows = [row for run in whole for row in retained_rows(run)]
    return write_figure(lambda: panel_per(whole, title, _draw), rows, folder, stem)


def retained_rows(run: StoredTraces) -> list[dict[str, Any]]:
    """One row per n from 1 to E: the mean share over questions, tokens and layers, with a bootstrap interval."""
    import numpy as np

    before_PLE = run.probabilities("before")
    rank_PLE = (-before_PLE).argsort(axis=-1, kind="stable").argsort(axis=-1)
    rank_PLK = np.take_along_axis(rank_PLE, chosen_PLK(run.probabilities("after"), run.top_k), axis=-1)
    count_N = np.bincount(run.question_P)
    rows = []
    for n in range(1, before_PLE.shape[-1] + 1):
        share_P = (rank_PLK < n).mean(axis=(1, 2))
        share_N = np.bincount(run.question_P, weights=share_P) / count_N
        low, high = bootstrap_interval(share_N) if len(share_N) > 1 else (None, None)
        rows.append(
            {
                **run.key,
                "n": n,
                "share": float(share_N.mean()),
                "low": low,
                "high": high,
                "questions": len(share_N),
            }
        )
    return rows


def _draw(axis: Axes, run: StoredTraces) -> None:
    rows = retained_rows(run)
    counts = [row["n"] for row in rows]
    axis.plot(counts, [row["share"] for row in rows], "o-", ms=3, color=BLUE, label="mean")
    if all(row["low"] is not None for row in rows):
        axis.fill_between(
            counts, [row["low"] for row in rows], [row["high"] for row in rows], color=BLUE, alpha=0.15, lw=0,
            label="95% interval",
        )  # fmt: skip
    axis.axvline(run.top_k, color=GREY, ls=":", lw=1.2, label=f"the {run.top_k} experts of a token")
    axis.set(
        title=run.label,
        xlabel="n: first experts by the router",
        ylabel="share among the first n",
        xticks=[count for count in counts if count % (2 if counts[-1] <= 24 else 8) == 0],
        ylim=(0, 1.03),
    )
