"""Expert metrics as numbers of a paper's table.

`expert.load_balance`, `expert.collaboration`, `expert.capacity` (that of the least activated expert),
`expert.capacity_most` (of the most activated one) and `expert.specialization`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.reports.scores import Row, headline, rows_of

EXPERT = "expert."
"""What the names of expert metrics begin with."""
ENTROPIES = ("load_balance", "collaboration")
LOSSES = ("capacity", "capacity_most", "specialization")


def expert_row(results: dict[str, Any], found: dict[str, Any], metric: str) -> Row:
    """One metric of a run's expert_metrics.json, over all tokens and all of the run's tasks. Raises ConfigError."""
    name = metric.removeprefix(EXPERT)
    if name not in (*ENTROPIES, *LOSSES):
        known = ", ".join(EXPERT + each for each in (*ENTROPIES, *LOSSES))
        raise ConfigError(f"metric: {metric} is no expert metric. Choices: {known}.")
    row = replace(
        rows_of(results)[0],
        metric=metric,
        stderr=None,
        baseline=None,
        difference=None,
        difference_interval=None,
        p_mcnemar=None,
        flips=None,
    )
    if name in LOSSES and found["capacity"] is None:
        return replace(row, value=None, interval=None)  # the method lets no expert be masked
    told = found[name]["all"] if name in ENTROPIES else _loss(found, name)
    value, limits = told["value" if name in ENTROPIES else "difference"], told["ci95"]
    return replace(row, value=value, interval=tuple(limits) if limits else None)


def unit_of(metric: str) -> str:
    """What an expert metric is measured in."""
    return "bits" if metric.removeprefix(EXPERT) in ENTROPIES else "accuracy lost"


def _loss(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Accuracy lost under masked or random routing; of several tasks their documents together."""
    which = {"capacity": "least", "capacity_most": "most"}
    tasks = (found["capacity"][which[name]] if name in which else found[name])["tasks"]
    losses = tasks.get("all") or next(iter(tasks.values()))
    return losses[headline(losses, found["metric"])]
