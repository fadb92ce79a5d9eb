"""What an expert metric is: a number from counts of selections, or the accuracy lost under a routing policy.

L = MoE layers, E = experts (of the layer with the most).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from moe_lab.engine.forward.observer import Observer

Evaluate = Callable[[str, "Observer"], tuple[Any, dict[str, Any]]]
"""(name, policy) -> lm-eval's samples of the documents under the policy, and what the evaluation cost."""
Losses = Callable[[Sequence[Any]], dict[str, Any]]
"""Samples of evaluations under a policy -> what each task loses (`accuracy_drop.losses`)."""
Lost = Callable[["Observer"], dict[str, Any]]
"""Policy -> {"value", "ci95"}: the accuracy that held-out rows of a training lose under it."""


@dataclass(frozen=True)
class CountedMetric:
    """A metric of how often experts are selected, in bits. It stands in expert_metrics.json for each kind of tokens."""

    label: str
    of_layers: Callable[[np.ndarray, Sequence[int]], np.ndarray]
    """(counts, experts of each layer) -> [..., L]; the counts are `of_pairs` or selections [..., L, E]."""
    maximum: Callable[[int], float]
    """The largest value of a layer, by its number of experts."""
    of_pairs: bool = False
    """Whether `of_layers` takes counts of pairs, [..., L, E, E], whose diagonal holds selections of single experts."""


class Selections(NamedTuple):
    """How often a model's own routing selects each expert."""

    counts_LE: np.ndarray
    experts: list[int]
    """Number of experts of each layer."""
    top_k: list[int]
    """Experts per token of each layer."""


class Intervention(NamedTuple):
    """A routing policy under which documents are evaluated again."""

    name: str
    """Its name in a paper's table, after `expert.`."""
    logged_as: str
    label: str
    """Its description on the terminal."""
    key: str | None = None
    """Its key in the metric's block of expert_metrics.json; None: the block itself."""

    def block(self, found: dict[str, Any]) -> dict[str, Any]:
        return found if self.key is None else found[self.key]

    def path(self, metric: str) -> tuple[str, ...]:
        """Where the block stands in expert_metrics.json; `metric` is the name of its metric."""
        return (metric,) if self.key is None else (metric, self.key)


class InterventionMetric(ABC):
    """A metric of the accuracy that is lost under a policy. Its block is null for methods without interventions."""

    label: str
    interventions: tuple[Intervention, ...]
    evaluations: int
    """How often a run's documents are evaluated again."""

    @abstractmethod
    def evaluate(self, selections: Selections, evaluate: Evaluate, losses: Losses) -> dict[str, Any]:
        """Evaluate a run again under each policy; returns the metric's block of expert_metrics.json."""

    @abstractmethod
    def measure(self, selections: Selections, lost: Lost) -> dict[str, Any] | None:
        """Measure a model in training; returns the metric's block in a line of expert_metrics.jsonl."""
