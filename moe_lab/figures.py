"""The figure of an experiment: from its cells to a PNG and the CSV behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config import Config
from moe_lab.reports.experiment import Experiment
from moe_lab.reports.table_cell import TableCell

if TYPE_CHECKING:
    from moe_lab.models.pool import ModelPool


def make_figure(
    experiment: Experiment,
    scale: str,
    cells: Sequence[TableCell],
    config: Config,
    models: ModelPool,
    folder: Path,
) -> list[Path]:
    """Draw the experiment's figure from the cells that are there; returns the paths of PNG and CSV.

    An experiment without a figure, or without a cell that it could show, gives none.
    """
    return []
