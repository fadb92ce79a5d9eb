"""Capacity (MoE-Bench, section 4.1): the accuracy lost when one expert of every layer is masked."""

from __future__ import annotations

from typing import Any

from moe_lab.metrics.metric import Evaluate, Intervention, InterventionMetric, Losses, Lost, Selections


class Capacity(InterventionMetric):
    """Masks the least selected expert of every layer, then the most selected one."""

    label = "Capacity"
    interventions = (
        Intervention("capacity", "capacity_least", "least activated expert masked", key="least"),
        Intervention("capacity_most", "capacity_most", "most activated expert masked", key="most"),
    )
    evaluations = 2

    def evaluate(self, selections: Selections, evaluate: Evaluate, losses: Losses) -> dict[str, Any]:
        from moe_lab.metrics.interventions import Masked

        block = {}
        for which, masked in extreme_experts(selections).items():
            samples, cost = evaluate(f"capacity_{which}", Masked(masked))
            block[which] = {"masked": masked, "tasks": losses([samples]), "cost": cost}
        return block

    def measure(self, selections: Selections, lost: Lost) -> dict[str, Any] | None:
        """None for a model whose tokens take all of its experts."""
        from moe_lab.metrics.interventions import Masked

        if any(k >= count for k, count in zip(selections.top_k, selections.experts, strict=True)):
            return None
        masked = extreme_experts(selections)
        return {which: lost(Masked(own)) | {"masked": own} for which, own in masked.items()}


def extreme_experts(selections: Selections) -> dict[str, list[int]]:
    """The least and the most selected expert of every layer; the first of equal ones."""
    counts = [row[:count] for row, count in zip(selections.counts_LE, selections.experts, strict=True)]
    return {"least": [int(row.argmin()) for row in counts], "most": [int(row.argmax()) for row in counts]}


METRIC = Capacity()
