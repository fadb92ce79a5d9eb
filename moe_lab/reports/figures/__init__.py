"""Figures as PNG and SVG, with their numbers as CSV.

matplotlib is imported only when something is drawn.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from moe_lab.reports.papers.figure_kinds import FIGURES, TRACES
from moe_lab.results.model import RunResult


def _forget_missing_backend() -> None:
    """Forget the backend that a notebook's kernel hands to its processes if its package is missing.

    matplotlib could not be imported with it. Figures here need no backend.
    """
    package = _package_of(os.environ.get("MPLBACKEND", ""))
    if package and find_spec(package) is None:
        del os.environ["MPLBACKEND"]


def _package_of(backend: str) -> str:
    """The package of a notebook's backend, such as ipympl; empty for a backend of matplotlib."""
    if backend == "inline":
        return "matplotlib_inline"
    if backend == "widget":
        return "ipympl"
    if backend.startswith("module://"):
        return backend.removeprefix("module://").partition(".")[0]
    return ""


_forget_missing_backend()


def write_study_figures(folder: Path) -> list[Path]:
    """Draw a study's figures into its `figures/`.

    Returns the paths, each PNG followed by its CSV. tuning=tpe: `history` and `heatmap`;
    tuning=uniform: `sweep`. Figures of earlier trials are replaced. There are no figures without a
    complete trial, with tuning=scale (one trial), and with tuning=grid (no temperatures).
    """
    from moe_lab.reports.figures.stored_studies import read_study
    from moe_lab.reports.figures.studies import draw_heatmap, draw_history, draw_sweep

    study = read_study(folder)
    if study.complete.empty or study.info.tuning in ("scale", "grid"):
        return []
    if study.info.tuning == "uniform":
        drawings = {"sweep": draw_sweep([study])}
    else:
        drawings = {"history": draw_history([study]), "heatmap": draw_heatmap([study])}
    paths = []
    for kind, drawing in drawings.items():
        paths += drawing.save(folder / "figures", kind)
    return paths


def write_run_figures(result: RunResult, kinds: Sequence[str]) -> list[Path]:
    """Draw a run's traces, as its method declares (`kinds`), and its expert metrics into its
    `figures/`.

    Returns the paths, each PNG followed by its CSV; none without traces and expert metrics.
    """
    from moe_lab.reports.expert import expert_metrics_of

    paths: list[Path] = []
    metrics = expert_metrics_of(result)
    if metrics is not None:
        from moe_lab.reports.figures.routing import write_routing_figures

        paths += write_routing_figures(result.stored_in, metrics)
    if not kinds or not (result.stored_in / TRACES).is_file():
        return paths
    from moe_lab.reports.figures.stored_traces import read_traces

    traces = read_traces(result)
    for kind in kinds:
        module = import_module(f"moe_lab.reports.figures.{FIGURES[kind].module}")
        draw = getattr(module, f"draw_{kind}")
        paths += draw([traces]).save(result.stored_in / "figures", kind)
    return paths
