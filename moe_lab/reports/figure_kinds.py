"""The kinds of figures that an experiment's `figure:` names.

A kind is a line of FIGURES: what it draws, and the module in `moe_lab/reports/figures/` whose
`write_<kind>(data, folder, stem, title)` writes `<stem>.png`, `<stem>.svg` (for pages) and `<stem>.csv`. `data` is
one of:

- `cells`: the experiment with its cells (`papers/cells.py: CellTable`)
- `studies`: the studies that tuned the cells (`figures/studies.py: StoredStudy`)
- `traces`: the traces of the cells' runs (`figures/traces.py: StoredTraces`)
- `measurements`: time and memory next to a model of equivalent size (`runs/experiments/figures.py`)
"""

from __future__ import annotations

FIGURES = {
    "accuracy": ("cells", "comparisons"),
    "activation": ("traces", "pathways"),
    "control": ("cells", "comparisons"),
    "designs": ("cells", "training"),
    "effects": ("cells", "comparisons"),
    "epochs": ("cells", "curves"),
    "equivalent": ("measurements", "cost"),
    "flops": ("cells", "curves"),
    "forest": ("cells", "comparisons"),
    "heatmap": ("studies", "studies"),
    "history": ("studies", "studies"),
    "lines": ("cells", "curves"),
    "overhead": ("cells", "cost"),
    "quality_cost": ("cells", "cost"),
    "retained": ("traces", "traces"),
    "sample": ("traces", "pathways"),
    "schedules": ("cells", "curves"),
    "steps": ("traces", "traces"),
    "sweep": ("studies", "studies"),
    "training_curves": ("cells", "training"),
}
TABLES = ("recipe", "references", "setup")
"""Kinds that replace the table of cells by a table of their own (`runs/experiments/figures.py`)."""
