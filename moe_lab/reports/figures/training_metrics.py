"""The four expert metrics over a training, each from its least to its largest value, the first and last ones in figures
(MoE-Bench, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.metrics.correlations import values_of
from moe_lab.reports.figures.style import COLOURS, MARKERS, legend_below, panels, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "load_balance": "Load Balance",
    "collaboration": "Collaboration",
    "capacity": "Capacity",
    "specialization": "Specialization",
}


def write_training_metrics(lines: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """`expert_metrics.png` and `.csv` of the measurements in expert_metrics.jsonl; the CSV has them as they are."""
    rows = [
        {"step": line["step"], "epoch": line["epoch"], **values_of(line), **_bounds(line)} for line in lines
    ]
    return write_figure(lambda: _draw(rows), rows, folder, "expert_metrics")


def _bounds(line: dict[str, Any]) -> dict[str, float | None]:
    """Each metric's 95% interval."""
    found = {name: line[name] for name in LABELS} | {"capacity": (line["capacity"] or {}).get("least")}
    bounds = {name: (one or {}).get("ci95") or [None, None] for name, one in found.items()}
    return {
        f"{name}_{side}": limits[number]
        for name, limits in bounds.items()
        for number, side in enumerate(("low", "high"))
    }


def _draw(rows: Sequence[dict[str, Any]]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, (axis,) = panels(1, height=2.6)
    epochs = [row["epoch"] for row in rows]
    for (name, label), colour, marker in zip(LABELS.items(), COLOURS, MARKERS, strict=False):
        values = [row[name] for row in rows]
        if None in values:
            continue
        low, high = min(values), max(values)
        heights = [(value - low) / (high - low) if high > low else 0.5 for value in values]
        ends = f"{label}: {values[0]:.3f} to {values[-1]:.3f}"
        axis.plot(epochs, heights, color=colour, marker=marker, label=ends)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="epoch", ylabel="normalized value")
    legend_below(figure, [axis], columns=2)
    return figure
