"""Capacity (MoE-Bench, section 4.1): the accuracy lost when one expert of every layer is masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moe_lab.metrics.metric import Evaluate, Intervention, InterventionMetric, Losses, Lost


class Capacity(InterventionMetric):
    """Masks the least selected expert of every layer, then the most selected one."""

    label = "Capacity"
    interventions = (
        Intervention("capacity", "capacity_least", "least activated expert masked", key="least"),
        Intervention("capacity_most", "capacity_most", "most activated expert masked", key="most"),
    )
    evaluations = 2

    def evaluate(
        self, selections_LE: np.ndarray, experts: Sequence[int], evaluate: Evaluate, losses: Losses
    ) -> dict[str, Any]:
        from moe_lab.metrics.interventions import Masked

        block = {}
        for which, masked in extreme_experts(selections_LE, experts).items():
            samples, cost = evaluate(f"capacity_{which}", Masked(masked))
            block[which] = {"masked": masked, "tasks": losses([samples]), "cost": cost}
        return block

    def measure(
        self, selections_LE: np.ndarray, experts: Sequence[int], maskable: bool, lost: Lost
    ) -> dict[str, Any] | None:
        from moe_lab.metrics.interventions import Masked

        if not maskable:
            return None
        masked = extreme_experts(selections_LE, experts)
        return {which: lost(Masked(own)) | {"masked": own} for which, own in masked.items()}

    def in_training(self, block: dict[str, Any] | None) -> dict[str, Any] | None:
        """That of the least selected experts."""
        return block["least"] if block else None


def extreme_experts(selections_LE: np.ndarray, experts: Sequence[int]) -> dict[str, list[int]]:
    """The least and the most selected expert of every layer; of several the first. `experts` of each layer."""
    real = [row[:count] for row, count in zip(selections_LE, experts, strict=True)]
    return {"least": [int(row.argmin()) for row in real], "most": [int(row.argmax()) for row in real]}


METRIC = Capacity()
