"""Tables that show our defaults next to the paper's (Table 1 of RoE and of MoE-Bench)."""

from typing import Any

from moe_lab.methods import get_method
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.runs.tuning.presets import preset

NAMES = {"metric": ("accuracy", "perplexity"), "cache": ("clean", "standard")}
"""The meanings of 0 and 1 in the published numbers of Table 1 of RoE."""


def setup_rows(experiment: Experiment) -> list[dict[str, Any]]:
    """RoE's Table 1: the default of tuning for every published number."""
    rows = []
    for published in experiment.paper:
        cell = published.cell
        quantity = cell["quantity"]
        default = getattr(preset(cell["category"], cell["model"]), quantity)
        value = published.value
        if quantity in NAMES:
            value = NAMES[quantity][int(value)]
        rows.append({**cell, "value": default, "published": value, "place": published.place})
    return rows


def recipe_rows(experiment: Experiment) -> list[dict[str, Any]]:
    """MoE-Bench's Table 1: the default of the method's key for every published number."""
    rows = []
    for published in experiment.paper:
        name = published.cell["method"]
        key = published.cell["setting"]
        method: Any = get_method(name)
        recipe = method.Config(name=name, dataset="lima").recipe()
        rows.append(
            {
                "setting": f"method.{key}",
                "value": recipe[key],
                "published": published.value,
                "place": published.place,
            }
        )
    return rows
