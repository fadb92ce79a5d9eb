"""Pre-trained designs beside each other, one panel per measure (MoE-Bench, Figure 2).

Accuracies are bars, other measures points; a dashed line is the dense model of equal active parameters. The interval at
a loss is that of its paired difference to the lowest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.figures.quantity import quantity
from moe_lab.reports.figures.style import COLOURS, GREY, MARKERS, RED, panel_per, write_figure
from moe_lab.reports.papers.average import averages
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.experiment import MEASURE, Experiment
from moe_lab.reports.papers.ranking import Ranked, chance_of, ranking
from moe_lab.reports.papers.training_scores import LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

DESIGN = "method.label"
DENSE = "dense"
COLUMNS = ["panel", "design", "series", "metric", "value", "low", "high", "std", "documents", "seeds", "published",
           "marks"]  # fmt: skip


def write_designs(table: CellTable, folder: Path, stem: str, title: str) -> list[Path]:
    """Bars and points with their 95% intervals, by granularity and by what else the designs differ in."""
    rows = design_rows(table)
    own = rows[rows["design"] != DENSE]
    names = (list(own["design"].unique()), list(own["series"].unique()))
    chance = chance_of(table.experiment, [cell for cell in table.cells if cell.metric == "headline"])
    draw = partial(_draw_panel, names=names, chance=chance)
    panels = rows.groupby("panel", sort=False)
    options: dict[str, Any] = {"columns": 2 if len(panels) in (2, 4) else 3, "height": 2.6}
    return write_figure(
        lambda: panel_per(list(panels), title, draw, **options), rows.to_dict("records"), folder, stem
    )


def design_rows(table: CellTable) -> DataFrame:
    """COLUMNS of every design; of several tasks the averages alone."""
    experiment, cells = table.experiment, table.cells
    of_training = [cell for cell in cells if cell.of_training]
    others = averages(experiment, cells) or [cell for cell in cells if not cell.of_training]
    frame = table.frame([*of_training, *others])
    keys = _series_keys(experiment, cells)
    frame["panel"] = [cell.coordinates.get(MEASURE, "") for cell in frame["cell"]]
    frame["design"] = [cell.coordinates[DESIGN] for cell in frame["cell"]]
    frame["series"] = [", ".join(cell.coordinates[key] for key in keys) for cell in frame["cell"]]
    ranked = {id(one.cell): one for one in ranking(experiment, cells)}
    for index, cell in enumerate(frame["cell"]):
        if one := ranked.get(id(cell)):
            frame.loc[index, ["low", "high"]] = _beside_the_lowest(one)
    return frame[COLUMNS]


def _beside_the_lowest(one: Ranked) -> list[float | None]:
    if one.interval is None or one.difference is None or one.loss.value is None:
        return [None, None]
    return [one.loss.value - one.difference + limit for limit in one.interval]


def _series_keys(experiment: Experiment, cells: Sequence[TableCell]) -> list[str]:
    """The axes beside granularity in which the designs differ."""
    moe = [cell for cell in cells if cell.coordinates[DESIGN] != DENSE]
    keys = [key for key in experiment.keys if key not in (DESIGN, MEASURE, experiment.average)]
    return [key for key in keys if len({cell.coordinates[key] for cell in moe}) > 1]


def _draw_panel(
    axis: Axes, panel: tuple[str, DataFrame], names: tuple[list[str], list[str]], chance: float | None
) -> None:
    name, rows = panel
    designs, series = names
    rate = rows.iloc[0]["metric"].startswith("acc")
    width = 0.8 / max(1, len(series))
    for index, (one, colour, marker) in enumerate(zip(series, COLOURS, MARKERS, strict=False)):
        own = rows[(rows["series"] == one) & (rows["design"] != DENSE)]
        places = [designs.index(design) + (index - (len(series) - 1) / 2) * width for design in own["design"]]
        if rate:
            axis.bar(places, own["value"], width * 0.92, color=colour, label=one)
        else:
            axis.plot(places, own["value"], marker, color=colour, label=one)
        for place, row in zip(places, own.itertuples(), strict=True):
            if row.low is not None:
                axis.plot([place] * 2, [row.low, row.high], "-", color="black" if rate else colour, lw=0.9)
            if row.published is not None:
                axis.plot(place, row.published, "D", mfc="none", mec=RED, ms=4, label="published")
    for dense in rows[rows["design"] == DENSE].itertuples():
        axis.axhline(dense.value, color="black", ls="--", lw=1, label="dense")
        if dense.low is not None:
            axis.axhspan(dense.low, dense.high, color="black", alpha=0.08, lw=0)
    if rate and chance is not None:
        axis.axhline(chance, color=GREY, ls=":", lw=1.2, label="chance")
    compared = "\n(intervals: difference to the lowest)" if rows.iloc[0]["metric"] == LOSS else ""
    axis.set(title=name + compared, ylabel=quantity(rows.iloc[0]["metric"]), xlim=(-0.6, len(designs) - 0.4))
    slanted: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(designs)), designs, **(slanted if len(designs) > 4 else {}))
    axis.grid(axis="x", visible=False)
