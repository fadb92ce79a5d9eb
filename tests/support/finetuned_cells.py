"""Cells of fine-tuned models by schedule and task."""

from types import SimpleNamespace

from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment, Published, Scale
from tests.support.stored_results import EXPERT_METRICS, expert_results

KEYS = {"name": "x", "title": "X", "source": "", "scales": {"tiny": Scale()}}


def cell(value: float = 0.6, metric: str = "headline", **coordinates) -> TableCell:
    told = expert_results(value, intervals={"t": {"acc,none": [value - 0.1, value + 0.1]}})
    config = SimpleNamespace(method=SimpleNamespace(learning_rate=0.02))
    found = {"run_id": "r", "results": [told], "expert": [StoredMetrics(EXPERT_METRICS)], "config": config}
    place = {key.replace("__", "."): value for key, value in coordinates.items()}
    return TableCell(coordinates=place, metric=metric, **found)


def bars(**more) -> Experiment:
    average = {"method.schedule": "none-router", "task": "average"}
    paper = [Published(cell=average, value=65.0, unit="percent", place="T")]
    axes = {"rows": ["method", "method.schedule"], "columns": ["task"], "average": "task"}
    return Experiment(**KEYS, paper=paper, **({"metric": "headline"} | axes | more))


def cells() -> list[TableCell]:
    both = [("base", "-", 0.1), ("finetune-freeze", "none-router", 0.5), ("finetune-freeze", "experts", 0.7)]
    return [
        cell(value + more, method=method, method__schedule=schedule, task=task)
        for method, schedule, value in both
        for task, more in (("arc", 0.0), ("piqa", 0.2))
    ]
