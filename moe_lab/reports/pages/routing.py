"""What runs did to the routing: temperatures, changed decisions, the load of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moe_lab.metrics.registry import METRICS, counted_metrics
from moe_lab.metrics.stored_counterfactual import shown_bands, stored_counterfactual
from moe_lab.metrics.stored_metrics import stored_metrics
from moe_lab.reports.pages.page import pictures_in
from moe_lab.reports.pages.stored_run import StoredRun

BAR_HEIGHT = 70
"""Pixels of the highest temperature."""


@dataclass(frozen=True)
class Routing:
    """The routing of one run."""

    label: str
    facts: dict[str, Any]
    """The method's report in results.json: what is a single number or word."""
    temperatures: list[dict[str, float]]
    """By MoE layer: the value, and the height of its bar in pixels."""
    layers: list[dict[str, Any]]
    """By MoE layer: the value and interval of each counted expert metric, in bits."""
    bands: list[dict[str, Any]]
    """The counterfactual routes of all tokens, and of those of each band of the router's confidence."""
    pictures: list[tuple[str, str]]
    """Name and data URI of the figures in the run's folder."""


def routing_of(run: StoredRun, label: str) -> Routing | None:
    """The routing of a run; None where nothing of it is stored."""
    block = run.block
    report = block.get(block["method"]["name"].replace("-", "_")) or {}
    trained = "training" in report  # its facts are those of the training (`origins.py`)
    facts = {} if trained else {k: v for k, v in report.items() if isinstance(v, str | int | float)}
    temperatures = report.get("temperatures") or []
    most = max(temperatures, default=0) or 1
    metrics = stored_metrics(run.folder, run.run_id, block["model"].get("commit"))
    routes = stored_counterfactual(run.folder, run.run_id, block["model"].get("commit"))
    pictures = pictures_in(run.folder)
    if not facts and metrics is None and routes is None and not pictures:
        return None
    bars = [{"value": value, "height": round(BAR_HEIGHT * value / most, 1)} for value in temperatures]
    return Routing(label, facts, bars, _layers(metrics), shown_bands(routes) if routes else [], pictures)


def _layers(metrics: dict[str, Any] | None) -> list[dict[str, Any]]:
    if metrics is None:
        return []
    names = list(counted_metrics())
    by_metric = [(metrics[name]["all"] or {}).get("layers") or [] for name in names]
    labels = [METRICS[name].label for name in names]
    return [dict(zip(labels, each, strict=True)) for each in zip(*by_metric, strict=True)]
