"""The kinds of figures that an experiment's `figure:` names.

A kind is a function `draw_<kind>(<data>)` in a module of `moe_lab/reports/figures/`, which returns
a `Drawing`: its numbers, and how they are drawn. The name of its parameter says what its data are.
"""

import re
from pathlib import Path
from typing import NamedTuple

DATA = {
    "table": "cells",
    "studies": "studies",
    "runs": "traces",
    "measurements": "measurements",
}
"""The data of a kind by the name of its function's parameter.

- cells: the experiment with its cells (`papers/cell_table.py: CellTable`)
- studies: the studies that tuned the cells (`figures/stored_studies.py: StoredStudy`)
- traces: those of the cells' runs (`figures/stored_traces.py: StoredTraces`)
- measurements: time and memory of a larger model (`runs/experiments/figure.py`)
"""
KIND = re.compile(r"^def draw_(\w+)\(\s*(\w+):", re.MULTILINE)


class FigureKind(NamedTuple):
    """Where a kind is drawn, and from what."""

    data: str
    """A value of DATA."""
    module: str
    """In `moe_lab/reports/figures/`."""


def _kinds() -> dict[str, FigureKind]:
    """The kinds by name.

    They are read from the modules' text, because importing them imports matplotlib.
    """
    kinds = {}
    folder = Path(__file__).parent.parent / "figures"
    for module in sorted(folder.glob("*.py")):
        for kind, parameter in KIND.findall(module.read_text(encoding="utf-8")):
            if parameter in DATA:
                kinds[kind] = FigureKind(DATA[parameter], module.stem)
    return kinds


FIGURES = _kinds()
TRACES = "traces.jsonl"
"""In the folder of a run with `method.trace=true`."""
TABLES = ("recipe", "references", "setup")
"""Kinds that replace the table of cells by a table of their own (`runs/experiments/figure.py`)."""
