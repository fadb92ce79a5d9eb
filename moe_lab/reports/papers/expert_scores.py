"""Expert metrics as numbers of a paper's table: `expert.load_balance`, `expert.capacity_most` and so on.

The names are those of `moe_lab/metrics/registry.py`: of counted metrics, and of the interventions of the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.metrics.registry import counted_metrics, interventions
from moe_lab.reports.scores import Score, empty_score, headline

EXPERT = "expert."
"""What the names of expert metrics begin with."""


def expert_score(results: dict[str, Any], found: dict[str, Any], metric: str) -> Score:
    """One metric of a run's expert_metrics.json, over all tokens and all of the run's tasks. Raises ConfigError."""
    score = empty_score(results, metric)
    name = metric.removeprefix(EXPERT)
    if name in counted_metrics():
        block = found[name]["all"]
        return _filled(score, block["value"], block["ci95"])
    for of, intervention in interventions():
        if intervention.name == name:
            if found[of] is None:
                return score  # the method lets no expert be masked or drawn at random
            loss = _loss(intervention.block(found[of])["tasks"], found["metric"])
            return _filled(score, loss["difference"], loss["ci95"])
    names = [*counted_metrics(), *(intervention.name for _, intervention in interventions())]
    raise ConfigError(
        f"metric: {metric} is no expert metric. Choices: {', '.join(EXPERT + each for each in names)}."
    )


def _filled(score: Score, value: float | None, limits: list[float] | None) -> Score:
    return replace(score, value=value, interval=(limits[0], limits[1]) if limits else None)


def _loss(tasks: dict[str, Any], metric: str | None) -> dict[str, Any]:
    """Of several tasks their documents together."""
    losses = tasks.get("all") or next(iter(tasks.values()))
    loss: dict[str, Any] = losses[headline(losses, metric)]
    return loss


def unit_of(metric: str) -> str:
    """What an expert metric is measured in."""
    return "bits" if metric.removeprefix(EXPERT) in counted_metrics() else "accuracy lost"
