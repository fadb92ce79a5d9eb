"""RoE beside the untouched model with more experts per token, at equal expert work (RoE, section 1)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.reports.figures.style import BLUE, GREY, ORANGE, count_axis, panel_per, write_figure
from moe_lab.reports.papers.cell_table import CellTable, coordinates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

LINES = {
    "base": ("untouched model with k' experts", ORANGE, "s", 0.97),
    "roe": ("RoE: n rows of k experts", BLUE, "o", 1.03),
    "roe, temperature 0": ("RoE at temperature 0: rounding alone", GREY, "^", 1.0),
}
"""Label, colour, marker and sideways shift of each method."""


COLUMNS = [
    "model",
    "task",
    "method",
    "metric",
    "rows",
    "experts_per_token",
    "expert_work",
    "value",
    "low",
    "high",
    "documents",
    "seeds",
    "std",
]


def write_control(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """The metric against experts computed per token and layer, one panel per model and task."""
    rows = control_rows(table)
    panels = rows.groupby(["model", "task"], sort=False)
    return write_figure(
        lambda: panel_per(list(panels), title, _draw_task, height=2.4), rows.to_dict("records"), folder, stem
    )


def control_rows(table: CellTable) -> DataFrame:
    """COLUMNS of every measured cell; `expert_work` is rows times experts per token."""
    frame = table.frame()
    blocks = [cell.results[0]["moe_lab"] for cell in frame["cell"]]
    frame["method"] = coordinates(frame, "method")
    frame["rows"] = [block["method"]["config"].get("n", 1) for block in blocks]
    frame["experts_per_token"] = [block["model"]["top_k"] for block in blocks]
    frame["expert_work"] = frame["rows"] * frame["experts_per_token"]
    return frame[COLUMNS].sort_values(["model", "task", "method", "expert_work"])


def _draw_task(axis: Axes, panel: tuple[tuple[str, str], DataFrame]) -> None:
    (model, task), rows = panel
    for method, (label, colour, marker, shift) in LINES.items():
        shown = rows[rows["method"] == method]
        if shown.empty:
            continue
        bounds = None
        if shown["low"].notna().all():
            bounds = [list(shown["value"] - shown["low"]), list(shown["high"] - shown["value"])]
        axis.errorbar(
            shown["expert_work"] * shift, list(shown["value"]), yerr=bounds, fmt=f"{marker}-", color=colour,
            capsize=2, elinewidth=0.9, label=label,
        )  # fmt: skip
    own = set(rows["experts_per_token"][rows["method"] == "roe"])
    for count in own:
        axis.axvline(count, color=GREY, ls=":", lw=1.2, label="the model's own k")
    count_axis(axis, sorted({*rows["expert_work"], *own}), "experts computed per token and layer")
    first = rows.iloc[0]
    axis.set(
        title=f"{model}, {task}\n({first['documents']} documents, 95% intervals)",
        ylabel=first["metric"].partition(",")[0],
    )
