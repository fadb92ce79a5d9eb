"""Memory, power and time of RoE against the number of rows (RoE, Figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.style import (
    COLOURS,
    GREY,
    MARKERS,
    count_axis,
    legend_below,
    log_axis,
    panels,
    write_figure,
)
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.cell_table import CellTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTITIES = {
    "seconds_per_token": "time per generated token",
    "memory_bytes": "peak memory",
    "watts": "power",
}
"""Quantities that are shown relative to n=1, with their labels. Throughput is the inverse of the first."""
CACHE_LABELS = {"clean": "clean cache", "standard": "standard cache", "none": "no cache"}


def write_overhead(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """One panel per quantity, relative to n=1; one line per cache and temperature."""
    rows = overhead_rows(table.cells)
    return write_figure(lambda: _draw(rows, title), rows, folder, stem)


def overhead_rows(cells: Sequence[TableCell]) -> list[dict[str, Any]]:
    """One row per cell that generated text: its costs, absolute and relative to n=1.

    `memory_bytes`: the peak of a CUDA device; elsewhere the weights and the peak memory that answering adds to the
    process. `watts` is energy over time; None without a meter. Relative values are None where there is no n=1.
    """
    rows = [_row(cell) for cell in cells if cell.results and cell.results[0]["moe_lab"]["cost"]["tokens_out"]]
    single = next((row for row in rows if row["n"] == 1), None)
    for row in rows:
        for name in (*QUANTITIES, "tokens_per_second"):
            one = None if single is None else single[name]
            row[f"relative_{name}"] = row[name] / one if row[name] is not None and one else None
    return sorted(rows, key=lambda row: (row["temperature"] != "0", row["cache"], row["n"]))


def _row(cell: TableCell) -> dict[str, Any]:
    block = cell.results[0]["moe_lab"]
    cost, roe = block["cost"], block["roe"]
    seconds, energy = cost["wall_seconds"], cost["energy_joules"]
    return {
        "model": block["model"]["name"],
        "task": block["task"]["name"],
        "documents": sum(map(len, block["samples"].values())),
        "device": cost["device"],
        "cache": roe["cache"],
        "temperature": "tuned" if any(roe["temperatures"]) else "0",
        "n": roe["n"],
        "tokens_out": cost["tokens_out"],
        "seconds_per_token": seconds / cost["tokens_out"],
        "tokens_per_second": cost["tokens_out"] / seconds,
        "memory_bytes": memory_of(cost),
        "energy_joules": energy,
        "watts": None if energy is None else energy / seconds,
        "run_id": block["run_id"],
    }


def memory_of(cost: dict[str, Any]) -> int | None:
    """Bytes: a CUDA device's peak; elsewhere weights and working memory, without Python and its libraries."""
    if str(cost["device"]).startswith("cuda"):
        return cost["peak_memory_bytes"]
    weights, working = cost.get("weight_bytes"), cost.get("peak_working_bytes")
    return None if weights is None or working is None else weights + working


def _draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    figure, axes = panels(len(QUANTITIES), height=2.5)
    first = rows[0]
    figure.suptitle(
        f"{title}\n{first['model']} on {first['device']}, {first['task']}, {first['documents']} documents, "
        "batch 1, one run per point"
    )
    for axis, (name, label) in zip(axes, QUANTITIES.items(), strict=True):
        _draw_quantity(axis, rows, name, label)
    legend_below(figure, axes, columns=3)
    return figure


def _draw_quantity(axis: Axes, rows: Sequence[dict[str, Any]], name: str, label: str) -> None:
    key = f"relative_{name}"
    single = next((row for row in rows if row["n"] == 1), None)
    axis.set_title(label)
    if all(row[key] is None for row in rows):
        why = "not measured:\nno power meter on this device" if name == "watts" else "not measured"
        axis.text(0.5, 0.5, why, ha="center", va="center", transform=axis.transAxes, color=GREY)
        axis.set(xticks=[], yticks=[])
        return
    caches = list(CACHE_LABELS)
    for cache, temperature in dict.fromkeys((row["cache"], row["temperature"]) for row in rows):
        line = [row for row in rows if (row["cache"], row["temperature"]) == (cache, temperature)]
        line = [row for row in [single, *line] if row is not None and row[key] is not None]
        index = caches.index(cache)
        axis.plot(
            [row["n"] for row in line], [row[key] for row in line], marker=MARKERS[index],
            ls="-" if temperature == "0" else "--", color=COLOURS[index], mfc=None if temperature == "0" else "white",
            label=f"{CACHE_LABELS[cache]}, temperature {temperature}",
        )  # fmt: skip
    counts = sorted({row["n"] for row in rows})
    count_axis(axis, counts, "n (rows per token)")
    if max(row[key] for row in rows if row[key] is not None) > 8:
        log_axis(axis)
    axis.set_ylabel("relative to n=1")
