"""Figures as PNG and SVG, with their numbers as CSV. matplotlib is imported only when something is drawn."""

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from moe_lab.reports.papers.figure_kinds import FIGURES, TRACES
from moe_lab.results.model import RunResult


def _forget_missing_backend() -> None:
    """Forget the backend that a notebook's kernel hands to its processes, where its package is missing.

    matplotlib could not be imported with it. Figures here need no backend.
    """
    backend = os.environ.get("MPLBACKEND", "")
    package = backend.removeprefix("module://").partition(".")[0]
    named = {"inline": "matplotlib_inline", "widget": "ipympl"}
    package = named.get(backend, package if backend.startswith("module://") else "")
    if package and find_spec(package) is None:
        del os.environ["MPLBACKEND"]


_forget_missing_backend()


def write_study_figures(folder: Path) -> list[Path]:
    """Draw a study's figures into its `figures/` and return their paths, each PNG followed by its CSV.

    tuning=tpe: `history` and `heatmap`; tuning=uniform: `sweep`. Figures of earlier trials are replaced. There are no
    figures without a complete trial, with tuning=scale (one trial), and with tuning=grid (no temperatures).
    """
    from moe_lab.reports.figures import studies

    study = studies.read_study(folder)
    if study.complete.empty or study.info.tuning in ("scale", "grid"):
        return []
    drawings = {"history": studies.draw_history, "heatmap": studies.draw_heatmap}
    if study.info.tuning == "uniform":
        drawings = {"sweep": studies.draw_sweep}
    return [
        path
        for kind, draw in drawings.items()
        for path in draw([study]).save(folder / "figures", kind)
    ]


def write_run_figures(result: RunResult, kinds: Sequence[str]) -> list[Path]:
    """Draw the figures of a run's traces that its method declares (`kinds`) into its `figures/`.

    Returns the paths, each PNG followed by its CSV.
    """
    if not kinds or not (result.stored_in / TRACES).is_file():
        return []
    from moe_lab.reports.figures.traces import read_traces

    run, paths = read_traces(result), list[Path]()
    for kind in kinds:
        module = import_module(f"moe_lab.reports.figures.{FIGURES[kind][1]}")
        paths += getattr(module, f"draw_{kind}")([run]).save(result.stored_in / "figures", kind)
    return paths
