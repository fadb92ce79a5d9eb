"""The kinds of figures that an experiment's `figure:` names.

A kind is a line of FIGURES and the module `moe_lab/reports/figures/<kind>.py`, whose
`write_<kind>(data, folder, stem, title)` writes `<stem>.png` and `<stem>.csv`. The line says what `data` is:

- `cells`: the experiment with its cells (`papers/cell_table.py: CellTable`)
- `studies`: the studies that tuned the cells (`figures/stored_study.py: StoredStudy`)
- `traces`: C3PO's traces of the cells' runs (`figures/stored_traces.py: StoredTraces`)
- `measurements`: time and memory beside a model of equivalent size (`runs/experiments/figure_rows.py`)
"""

from __future__ import annotations

FIGURES = {
    "accuracy": "cells",
    "activation": "traces",
    "control": "cells",
    "designs": "cells",
    "effects": "cells",
    "epochs": "cells",
    "equivalent": "measurements",
    "flops": "cells",
    "forest": "cells",
    "heatmap": "studies",
    "history": "studies",
    "lines": "cells",
    "overhead": "cells",
    "retained": "traces",
    "sample": "traces",
    "schedules": "cells",
    "steps": "traces",
    "sweep": "studies",
    "training_curves": "cells",
}
TABLES = ("recipe", "references", "setup")
"""Kinds that replace the table of cells by a table of their own (`runs/experiments/figures.py`)."""
