"""Figures as PNG with the CSV behind them. matplotlib is imported only when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write_study_figures(folder: Path) -> list[Path]:
    """Draw a study's figures into its `figures/` and return their paths, each PNG followed by its CSV.

    tuning=tpe: `history` and `heatmap`; tuning=uniform: `sweep`. Figures of earlier trials are replaced. A study
    without a complete trial has none, nor has tuning=scale, which has one trial.
    """
    from moe_lab.reports.figures.heatmap import write_heatmap
    from moe_lab.reports.figures.history import write_history
    from moe_lab.reports.figures.stored_study import read_study
    from moe_lab.reports.figures.sweep import write_sweep

    study = read_study(folder)
    if not study.complete or study.tuning == "scale":
        return []
    if study.tuning == "uniform":
        return write_sweep([study], folder / "figures", "sweep")
    history = write_history([study], folder / "figures", "history")
    heatmap = write_heatmap([study], folder / "figures", "heatmap") if study.temperatures else []
    return history + heatmap


def write_run_figures(folder: Path, results: dict[str, Any]) -> list[Path]:
    """Draw what a run's traces and expert metrics show into its `figures/`. `results` is its results.json.

    Of C3PO's traces `steps`, `activation` and `sample`, and `retained` where all experts were optimized; of expert
    metrics `coactivation` and `selections`. Returns the paths, each PNG followed by its CSV.
    """
    from moe_lab.metrics.stored_metrics import stored_metrics
    from moe_lab.reports.figures.coactivation import write_coactivation

    block = results["moe_lab"]
    metrics = stored_metrics(folder, block["run_id"], block["model"].get("commit"))
    return _trace_figures(folder, results) + (write_coactivation(folder, metrics) if metrics else [])


def _trace_figures(folder: Path, results: dict[str, Any]) -> list[Path]:
    from moe_lab.reports.figures.activation import write_activation
    from moe_lab.reports.figures.retained import write_retained
    from moe_lab.reports.figures.sample import write_sample
    from moe_lab.reports.figures.steps import write_steps
    from moe_lab.reports.figures.stored_traces import read_traces

    run = read_traces(folder, results)
    if run is None:
        return []
    drawn = {
        "steps": write_steps,
        "activation": write_activation,
        "sample": write_sample,
        "retained": write_retained,
    }
    return [path for name, write in drawn.items() for path in write([run], folder / "figures", name)]
