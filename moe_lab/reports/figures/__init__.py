"""Figures as PNG, with their numbers as CSV. matplotlib is imported only when something is drawn."""

from __future__ import annotations

from pathlib import Path

from moe_lab.results.model import RunResult


def write_study_figures(folder: Path) -> list[Path]:
    """Draw a study's figures into its `figures/` and return their paths, each PNG followed by its CSV.

    tuning=tpe: `history` and `heatmap`; tuning=uniform: `sweep`. Figures of earlier trials are replaced. A study
    without a complete trial has none, nor has tuning=scale, which has one trial.
    """
    from moe_lab.reports.figures.studies import read_study, write_heatmap, write_history, write_sweep

    study = read_study(folder)
    if not study.complete or study.tuning == "scale":
        return []
    if study.tuning == "uniform":
        return write_sweep([study], folder / "figures", "sweep")
    history = write_history([study], folder / "figures", "history")
    heatmap = write_heatmap([study], folder / "figures", "heatmap") if study.temperatures else []
    return history + heatmap


def write_run_figures(result: RunResult) -> list[Path]:
    """Draw what a run's traces and expert metrics show into its `figures/`.

    Of C3PO's traces `steps`, `activation` and `sample`, and `retained` where all experts were optimized; of expert
    metrics `coactivation` and `selections`. Returns the paths, each PNG followed by its CSV.
    """
    from moe_lab.metrics.stored import stored_metrics
    from moe_lab.reports.figures.coactivation import write_coactivation

    metrics = stored_metrics(result.stored_in, result.run_id, result.commit)
    return _trace_figures(result) + (write_coactivation(result.stored_in, metrics.experts) if metrics else [])


def _trace_figures(result: RunResult) -> list[Path]:
    from moe_lab.reports.figures.pathways import write_activation, write_sample
    from moe_lab.reports.figures.traces import read_traces, write_retained, write_steps

    run = read_traces(result)
    if run is None:
        return []
    drawn = {
        "steps": write_steps,
        "activation": write_activation,
        "sample": write_sample,
        "retained": write_retained,
    }
    return [
        path for name, write in drawn.items() for path in write([run], result.stored_in / "figures", name)
    ]
