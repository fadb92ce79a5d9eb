"""Figures as PNG with the CSV behind them. matplotlib is imported only when something is drawn."""

from __future__ import annotations

from pathlib import Path


def write_study_figures(folder: Path) -> list[Path]:
    """Draw a study's figures into its `figures/` and return their paths, each PNG followed by its CSV.

    tuning=tpe: `history` and `heatmap`; tuning=uniform: `sweep`. Figures of earlier trials are replaced. A study
    without a complete trial has none.
    """
    from moe_lab.reports.figures.heatmap import write_heatmap
    from moe_lab.reports.figures.history import write_history
    from moe_lab.reports.figures.stored_study import read_study
    from moe_lab.reports.figures.sweep import write_sweep

    study = read_study(folder)
    if not study.complete:
        return []
    if study.tuning == "uniform":
        return write_sweep([study], folder / "figures", "sweep")
    history = write_history([study], folder / "figures", "history")
    heatmap = write_heatmap([study], folder / "figures", "heatmap") if study.temperatures else []
    return history + heatmap
