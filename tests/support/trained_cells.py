"""Cells of trained models: fine-tuned by schedule and task, and pre-trained designs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import MEASURE, Experiment, Scale
from moe_lab.reports.papers.published import Published
from moe_lab.reports.papers.training_scores import LOSS
from moe_lab.results.model import RunResult
from moe_lab.results.statistics import bootstrap_interval
from tests.support.stored_results import EXPERT_METRICS, expert_results, results_of

KEYS: dict[str, Any] = {"name": "x", "title": "X", "source": "", "scales": {"tiny": Scale()}}
"""Of all experiments here."""


def cell(value: float = 0.6, metric: str = "headline", **coordinates: Any) -> TableCell:
    """A cell with one result; `method__schedule=` is the coordinate `method.schedule`."""
    interval = [value - 0.1, value + 0.1]
    place = {key.replace("__", "."): coordinate for key, coordinate in coordinates.items()}
    config: Any = SimpleNamespace(method=SimpleNamespace(learning_rate=0.02))
    return TableCell(
        coordinates=place,
        metric=metric,
        run_id="r",
        results=[expert_results(value, intervals={"t": {"acc,none": interval}})],
        expert=[StoredMetrics(EXPERT_METRICS)],
        config=config,
    )


def bars(**changes: Any) -> Experiment:
    """An experiment of fine-tunings by schedule and task; `changes` are other keys."""
    average = {"method.schedule": "none-router", "task": "average"}
    keys = KEYS | {
        "metric": "headline",
        "rows": ["method", "method.schedule"],
        "columns": ["task"],
        "average": "task",
        "paper": [Published(cell=average, value=65.0, unit="percent", place="T")],
    }
    return Experiment(**(keys | changes))


def cells() -> list[TableCell]:
    """The base model and two schedules on two tasks."""
    return [
        cell(0.1, method="base", method__schedule="-", task="arc"),
        cell(0.1 + 0.2, method="base", method__schedule="-", task="piqa"),
        cell(0.5, method="finetune-freeze", method__schedule="none-router", task="arc"),
        cell(0.5 + 0.2, method="finetune-freeze", method__schedule="none-router", task="piqa"),
        cell(0.7, method="finetune-freeze", method__schedule="experts", task="arc"),
        cell(0.7 + 0.2, method="finetune-freeze", method__schedule="experts", task="piqa"),
    ]


METRICS = {"held-out loss": LOSS, "accuracy": "headline"}


def experiment(**changes: Any) -> Experiment:
    """Granularity down, routers down, tasks and measures across."""
    keys = KEYS | {
        "rows": ["method.label", "method.router"],
        "columns": ["task", MEASURE],
        "metric": METRICS,
        "average": "task",
        "paper": [],
        "chance": {"a": 0.25, "b": 0.5},
    }
    return Experiment(**(keys | changes))


def trained_results(
    rows: Sequence[float], *, accuracy: float = 0.4, leak: float | None = None, **changes: Any
) -> RunResult:
    """A results.json of a design with these losses on held-out rows; `changes`
    are other keys of its block."""
    validation = {
        "loss": sum(rows) / len(rows),
        "ci95": bootstrap_interval(rows),
        "rows": len(rows),
        "row_losses": list(rows),
    }
    leaks = None
    if leak is not None:
        difference = {"difference": leak, "ci95": [leak - 0.1, leak + 0.1]}
        leaks = {"later_tokens": difference, "short_prefixes": difference}
    block = {
        "pretrain": {"model": "m", "training": {"validation": validation, "leak": leaks}},
        "partial": True,
    }
    return results_of("pretrain", value=accuracy, **(block | changes))


def design_cells(
    label: str,
    rows: Sequence[Sequence[float]],
    *,
    accuracy: float = 0.4,
    router: str = "token",
    coordinates: dict[str, Any] | None = None,
    **changes: Any,
) -> list[TableCell]:
    """The cells of a design on tasks a and b: accuracies, and one loss for both.

    `rows`: held-out losses by seed.
    """
    keys = {"method.label": label, "method.router": router} | (coordinates or {})
    cells = []
    for task, measure in (("a", "accuracy"), ("b", "accuracy"), ("-", "held-out loss")):
        results = []
        for seed, seed_rows in enumerate(rows):
            run_id = f"{label}{seed}"
            results.append(
                trained_results(seed_rows, accuracy=accuracy, run_id=run_id, seed=seed, **changes)
            )
        cells.append(
            TableCell(
                coordinates={**keys, "task": task, MEASURE: measure},
                run_id=f"{label}-{router}-{'-'.join(keys.values())}",
                metric=METRICS[measure],
                results=results,
            )
        )
    return cells
