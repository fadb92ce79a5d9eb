"""What is logged of a run's expert metrics, as plain keys and a table per layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moe_lab.metrics.registry import counted_metrics, interventions
from moe_lab.metrics.stored_metrics import stored_metrics
from moe_lab.reports.loggers.tables import Table

LAYER_COLUMNS = ["metric", "of", "layer", "value", "low", "high", "maximum"]


def expert_metrics(results: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The content of the run's expert_metrics.json, None where it has none."""
    block = results["moe_lab"]
    return stored_metrics(folder, block["run_id"], block["model"].get("commit"))


def expert_scores(metrics: dict[str, Any]) -> dict[str, float]:
    """`expert/<metric>/<of>` in bits; of each task `expert/<which>/<task>/<metric,filter>`, the accuracy lost."""
    scores = {
        f"expert/{metric}/{of}": one["value"]
        for metric in counted_metrics()
        for of, one in metrics[metric].items()
        if one is not None
    }
    return scores | {
        f"expert/{each.logged_as}/{task}/{metric}": loss["difference"]
        for name, each in interventions()
        if metrics[name] is not None
        for task, losses in each.block(metrics[name])["tasks"].items()
        for metric, loss in losses.items()
    }


def expert_layers(metrics: dict[str, Any]) -> Table:
    """A row per metric, kind of tokens and MoE layer."""
    rows = []
    for metric in counted_metrics():
        for of, one in metrics[metric].items():
            for number, layer in enumerate(one["layers"] if one else []):
                limits = layer["ci95"] or [None, None]
                rows.append([metric, of, number, layer["value"], *limits, layer["maximum"]])
    return LAYER_COLUMNS, rows
