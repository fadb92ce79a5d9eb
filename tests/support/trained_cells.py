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

KEYS = {"name": "x", "title": "X", "source": "", "scales": {"tiny": Scale()}}


def cell(value: float = 0.6, metric: str = "headline", **coordinates) -> TableCell:
    told = expert_results(value, intervals={"t": {"acc,none": [value - 0.1, value + 0.1]}})
    config = SimpleNamespace(method=SimpleNamespace(learning_rate=0.02))
    found = {
        "run_id": "r",
        "results": [told],
        "expert": [StoredMetrics(EXPERT_METRICS)],
        "config": config,
    }
    place = {key.replace("__", "."): value for key, value in coordinates.items()}
    return TableCell(coordinates=place, metric=metric, **found)


def bars(**more) -> Experiment:
    average = {"method.schedule": "none-router", "task": "average"}
    paper = [Published(cell=average, value=65.0, unit="percent", place="T")]
    axes = {"rows": ["method", "method.schedule"], "columns": ["task"], "average": "task"}
    return Experiment(**KEYS, paper=paper, **({"metric": "headline"} | axes | more))


def cells() -> list[TableCell]:
    both = [
        ("base", "-", 0.1),
        ("finetune-freeze", "none-router", 0.5),
        ("finetune-freeze", "experts", 0.7),
    ]
    return [
        cell(value + more, method=method, method__schedule=schedule, task=task)
        for method, schedule, value in both
        for task, more in (("arc", 0.0), ("piqa", 0.2))
    ]


METRICS = {"held-out loss": LOSS, "accuracy": "headline"}


def experiment(**more: Any) -> Experiment:
    """Granularity down, routers down, tasks and measures across."""
    told: dict[str, Any] = {
        "name": "x",
        "title": "X",
        "source": "",
        "scales": {"tiny": Scale()},
        "rows": ["method.label", "method.router"],
        "columns": ["task", MEASURE],
        "metric": METRICS,
        "average": "task",
        "paper": [],
        "chance": {"a": 0.25, "b": 0.5},
    }
    return Experiment(**(told | more))


def trained_results(
    rows: Sequence[float], *, accuracy: float = 0.4, leak: float | None = None, **more
) -> RunResult:
    """A results.json of a design with these losses on held-out rows."""
    validation = {
        "loss": sum(rows) / len(rows),
        "ci95": bootstrap_interval(rows),
        "rows": len(rows),
        "row_losses": list(rows),
    }
    part = None if leak is None else {"difference": leak, "ci95": [leak - 0.1, leak + 0.1]}
    found = None if part is None else {"later_tokens": part, "short_prefixes": part}
    block = {"model": "m", "training": {"validation": validation, "leak": found}}
    return results_of("pretrain", value=accuracy, **({"pretrain": block, "partial": True} | more))


def design_cells(
    label: str,
    rows: Sequence[Sequence[float]],
    *,
    accuracy: float = 0.4,
    router: str = "token",
    **more: Any,
) -> list[TableCell]:
    """The cells of a design on tasks a and b: accuracies, and one loss for both. `rows`: held-out losses by seed."""
    keys = {"method.label": label, "method.router": router} | more.pop("coordinates", {})
    cells = []
    for task, name in (("a", "accuracy"), ("b", "accuracy"), ("-", "held-out loss")):
        told = [trained_results(each, accuracy=accuracy, run_id=f"{label}{seed}", seed=seed, **more)
                for seed, each in enumerate(rows)]  # fmt: skip
        place = {**keys, "task": task, MEASURE: name}
        run_id = f"{label}-{router}-{'-'.join(keys.values())}"
        cells.append(
            TableCell(coordinates=place, run_id=run_id, metric=METRICS[name], results=told)
        )
    return cells
