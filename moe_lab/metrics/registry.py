"""The expert metrics of MoE-Bench (section 4.1): Load Balance, Collaboration, Capacity,
Specialization.

A metric is a class or function here and a line in `METRICS`. It is computed either from counts of
selections (`CountedMetric`) or from evaluations under a changed routing (`InterventionMetric`).

L = MoE layers, E = experts (of the layer with the most).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moe_lab.results.measured import Value

if TYPE_CHECKING:
    from moe_lab.engine.forward.forward import Observer
    from moe_lab.metrics.interventions import Masked

Evaluate = Callable[[str, "Observer"], tuple[Any, dict[str, Any]]]
"""(name, policy) -> lm-eval's samples under the policy, and the cost of the evaluation."""
Losses = Callable[[Sequence[Any]], dict[str, Any]]
"""Samples of evaluations under a policy -> the accuracy lost in each task (`intervals.losses`)."""
Lost = Callable[["Observer"], dict[str, Any]]
"""Policy -> a `Value` as JSON: the accuracy lost on the validation examples of a training."""


@dataclass(frozen=True)
class CountedMetric:
    """A metric of how often experts are selected. expert_metrics.json has it for each kind of
    tokens."""

    label: str
    of_layers: Callable[[np.ndarray, Sequence[int]], np.ndarray]
    """(counts, experts of each layer) -> [..., L]; the counts are `of_pairs` or selections [..., L,
    E]."""
    maximum: Callable[[int], float]
    """The largest value of a layer, by its number of experts."""
    unit: str = "bits"
    """The unit of its values, in tables and figures."""
    of_pairs: bool = False
    """Whether `of_layers` takes counts of pairs, [..., L, E, E], whose diagonal holds selections of
    single experts."""


class Selections(NamedTuple):
    """How often a model's own routing selects each expert."""

    counts_LE: np.ndarray
    experts: list[int]
    """Number of experts of each layer."""
    top_k: list[int]
    """Experts per token of each layer."""


class Intervention(NamedTuple):
    """A routing policy under which the examples are evaluated again."""

    name: str
    """Its name in a paper's table, after `expert.`."""
    logged_as: str
    label: str
    """Its description on the terminal."""
    key: str | None = None
    """Its key in the metric's block of expert_metrics.json; None: the block itself."""

    def block(self, of_metric: dict[str, Any]) -> dict[str, Any]:
        """Its block in that of its metric."""
        return of_metric if self.key is None else of_metric[self.key]

    def path(self, metric: str) -> tuple[str, ...]:
        """The keys that lead to its block in expert_metrics.json; `metric` is the name of its
        metric."""
        return (metric,) if self.key is None else (metric, self.key)


class InterventionMetric(ABC):
    """A metric of the accuracy that is lost under a policy. Its block is null for methods without
    interventions."""

    label: str
    interventions: tuple[Intervention, ...]
    evaluations: int
    """How often a run's examples are evaluated again."""

    @abstractmethod
    def evaluate(
        self, selections: Selections, evaluate: Evaluate, losses: Losses
    ) -> dict[str, Any]:
        """Evaluate a run again under each policy; returns the metric's block of
        expert_metrics.json."""

    @abstractmethod
    def measure(self, selections: Selections, lost: Lost) -> dict[str, Any] | None:
        """Measure a model in training; returns the metric's block in a line of
        expert_metrics.jsonl."""


def load_balance(selections: np.ndarray, experts: Sequence[int]) -> np.ndarray:
    """Per layer, the entropy of selection frequencies: [..., L, E] -> [..., L]; at most log2 of a
    layer's experts."""
    return entropy_bits(selections)


def collaboration(pairs: np.ndarray, experts: Sequence[int]) -> np.ndarray:
    """Per layer, the mean over experts i of the entropy of P(j | i), j != i: [..., L, E, E] ->
    [..., L].

    P(j | i) is the share of j among all experts that were selected together with i. The entropy is
    0 for an expert that was never selected together with another one. At most log2(E - 1).
    """
    others = pairs * (1 - np.eye(pairs.shape[-1]))
    return entropy_bits(others).sum(axis=-1) / np.asarray(experts)


def entropy_bits(counts: np.ndarray) -> np.ndarray:
    """Entropy in bits over the last axis; 0 where nothing was counted."""
    total = counts.sum(axis=-1, keepdims=True)
    share = counts / np.where(total > 0, total, 1)
    return -(share * np.log2(np.where(share > 0, share, 1.0))).sum(axis=-1)


class Capacity(InterventionMetric):
    """The accuracy lost when the least, or the most, selected expert of every layer is masked."""

    label = "Capacity"
    interventions = (
        Intervention("capacity", "capacity_least", "least activated expert masked", key="least"),
        Intervention("capacity_most", "capacity_most", "most activated expert masked", key="most"),
    )
    evaluations = 2

    @staticmethod
    def policies(selections: Selections) -> dict[str, Masked]:
        """By "least" and "most": without the least, and the most, selected expert of every layer.

        Of equally selected experts the first one is masked.
        """
        from moe_lab.metrics.interventions import Masked

        least = []
        most = []
        for counts_E, experts in zip(selections.counts_LE, selections.experts, strict=True):
            of_layer = counts_E[:experts]
            least.append(int(np.argmin(of_layer)))
            most.append(int(np.argmax(of_layer)))
        return {"least": Masked(least), "most": Masked(most)}

    def evaluate(
        self, selections: Selections, evaluate: Evaluate, losses: Losses
    ) -> dict[str, Any]:
        block = {}
        for which, policy in self.policies(selections).items():
            samples, cost = evaluate(f"capacity_{which}", policy)
            block[which] = {"masked": policy.experts, "tasks": losses([samples]), "cost": cost}
        return block

    def measure(self, selections: Selections, lost: Lost) -> dict[str, Any] | None:
        """None for a model whose tokens take all of its experts."""
        for top_k, experts in zip(selections.top_k, selections.experts, strict=True):
            if top_k >= experts:
                return None
        block = {}
        for which, policy in self.policies(selections).items():
            block[which] = lost(policy) | {"masked": policy.experts}
        return block


class Specialization(InterventionMetric):
    """The accuracy lost when every token takes K random experts in each layer, with its own
    weights."""

    seeds = (0, 1, 2)
    """The loss of a run is averaged over these random routings."""
    training_seed = 0
    """One seed is enough in a training: each token has its own draw, so examples vary more than
    seeds."""
    label = "Specialization"
    interventions = (
        Intervention("specialization", "specialization", f"random experts, {len(seeds)} seeds"),
    )
    evaluations = len(seeds)

    def evaluate(
        self, selections: Selections, evaluate: Evaluate, losses: Losses
    ) -> dict[str, Any]:
        from moe_lab.metrics.interventions import RandomRouting

        samples_of_seeds = []
        costs = []
        for seed in self.seeds:
            samples, cost = evaluate(f"random_{seed}", RandomRouting(seed))
            samples_of_seeds.append(samples)
            costs.append(cost)
        return {"seeds": list(self.seeds), "tasks": losses(samples_of_seeds), "cost": costs}

    def measure(self, selections: Selections, lost: Lost) -> dict[str, Any]:
        from moe_lab.metrics.interventions import RandomRouting

        return lost(RandomRouting(self.training_seed)) | {"seed": self.training_seed}


METRICS: dict[str, CountedMetric | InterventionMetric] = {
    "load_balance": CountedMetric(
        "Load Balance", load_balance, maximum=lambda experts: float(np.log2(experts))
    ),
    "collaboration": CountedMetric(
        "Collaboration",
        collaboration,
        maximum=lambda experts: float(np.log2(max(1, experts - 1))),
        of_pairs=True,
    ),
    "capacity": Capacity(),
    "specialization": Specialization(),
}
"""All metrics, by their names in files."""

HEADER = {"metric", "documents", "experts", "top_k", "tokens"}
"""Keys that every expert_metrics.json has in addition to its metrics."""


def counted_metrics() -> dict[str, CountedMetric]:
    """The metrics of `METRICS` that are computed from counts, by name."""
    counted = {}
    for name, metric in METRICS.items():
        if isinstance(metric, CountedMetric):
            counted[name] = metric
    return counted


def intervention_metrics() -> dict[str, InterventionMetric]:
    """The metrics of `METRICS` that need evaluations under a policy, by name."""
    with_interventions = {}
    for name, metric in METRICS.items():
        if isinstance(metric, InterventionMetric):
            with_interventions[name] = metric
    return with_interventions


def interventions() -> list[tuple[str, Intervention]]:
    """Every intervention with the name of its metric."""
    named = []
    for name, metric in intervention_metrics().items():
        for intervention in metric.interventions:
            named.append((name, intervention))
    return named


def values_of(line: dict[str, Any]) -> dict[str, Value]:
    """The value of every counted metric and of every intervention, by name.

    A metric that was not measured is null in the line, or missing if it was registered later; its
    value is empty.

    Args:
        line: a line of a training's expert_metrics.jsonl, with the block of each metric by name.
    """
    blocks = {name: line.get(name) or {} for name in counted_metrics()}
    for metric, intervention in interventions():
        block = line.get(metric)
        blocks[intervention.name] = intervention.block(block) if block else {}
    return {name: Value.model_validate(block) for name, block in blocks.items()}


def labels() -> dict[str, str]:
    """The label in figures of each of `values_of`'s metrics."""
    labels_by_name = {name: metric.label for name, metric in counted_metrics().items()}
    for metric, intervention in interventions():
        label = METRICS[metric].label
        if intervention.key:
            label += f", {intervention.key} activated"
        labels_by_name[intervention.name] = label
    return labels_by_name


def evaluations() -> int:
    """How often `metrics=expert` evaluates a run's examples again."""
    return sum(metric.evaluations for metric in intervention_metrics().values())
