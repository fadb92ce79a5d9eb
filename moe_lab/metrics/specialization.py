"""Specialization (MoE-Bench, section 4.1): the accuracy lost when every token takes experts at random."""

from __future__ import annotations

from typing import Any

from moe_lab.metrics.metric import Evaluate, Intervention, InterventionMetric, Losses, Lost, Selections

SEEDS = (0, 1, 2)
"""Of random routing in a run; the loss is averaged over them."""
TRAINING_SEED = 0
"""In a training one seed is enough: random routing draws anew for every token, so rows differ more than seeds."""


class Specialization(InterventionMetric):
    """Draws K distinct experts for every token and layer, and keeps the token's own weights."""

    label = "Specialization"
    interventions = (Intervention("specialization", "specialization", f"random experts, {len(SEEDS)} seeds"),)
    evaluations = len(SEEDS)

    def evaluate(self, selections: Selections, evaluate: Evaluate, losses: Losses) -> dict[str, Any]:
        from moe_lab.metrics.interventions import RandomRouting

        drawn = [evaluate(f"random_{seed}", RandomRouting(seed)) for seed in SEEDS]
        return {
            "seeds": list(SEEDS),
            "tasks": losses([samples for samples, _ in drawn]),
            "cost": [cost for _, cost in drawn],
        }

    def measure(self, selections: Selections, lost: Lost) -> dict[str, Any]:
        from moe_lab.metrics.interventions import RandomRouting

        return lost(RandomRouting(TRAINING_SEED)) | {"seed": TRAINING_SEED}


METRIC = Specialization()
