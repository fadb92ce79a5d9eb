"""The default settings of tuning by task category and model (RoE, Table 1 and section 3.1)."""

from dataclasses import dataclass

from moe_lab.models.facts import ModelFacts


@dataclass(frozen=True)
class Preset:
    """One cell group of Table 1."""

    n: int
    """N: routing samples per token."""
    max_temperature: float
    """T: upper bound of the search."""
    skip_layers: int
    """L: MoE layers without noise at either end."""
    cache: str
    """clean or standard (section 3.1)."""
    metric: str
    """perplexity if the table's PPL is ticked, else accuracy."""
    num_samples: int
    n_trials: int


BUDGETS: dict[str, tuple[str, int, int]] = {
    "math": ("perplexity", 100, 50),
    "commonsense": ("accuracy", 300, 100),
    "code": ("accuracy", 50, 50),
}
"""Metric, tuning documents and trials by task category."""

SEARCHES: dict[str, dict[str, tuple[int, float, int]]] = {
    "olmoe": {"math": (32, 0.5, 1), "commonsense": (32, 0.5, 3), "code": (32, 0.5, 1)},
    "mixtral": {"math": (64, 0.25, 5), "commonsense": (64, 0.3, 3), "code": (64, 0.25, 5)},
    "gpt-oss": {"math": (64, 0.2, 5), "commonsense": (64, 0.2, 5), "code": (64, 0.2, 5)},
}
"""N, T and L by model and task category."""

CACHES = {"olmoe": "clean", "mixtral": "standard", "gpt-oss": "standard"}
"""Section 3.1: the clean cache for OLMoE, the standard cache for the other models."""

OTHER_MODELS = (32, 0.5, 1)
"""N, T and L of models that are not in the table: its values for OLMoE, with the smallest L."""

_SHAPES = {("olmoe", 16): "olmoe", ("mixtral", 32): "mixtral", ("gpt_oss", 24): "gpt-oss"}
"""(family, MoE layers) of the paper's models."""


def preset(category: str | None, model_name: str | None) -> Preset:
    """The defaults of tuning. Tasks without a category use the defaults of math."""
    category = category or "math"
    model_name = model_name or ""
    n, max_temperature, skip_layers = SEARCHES.get(model_name, {}).get(category, OTHER_MODELS)
    metric, num_samples, n_trials = BUDGETS[category]
    return Preset(
        n=n,
        max_temperature=max_temperature,
        skip_layers=skip_layers,
        cache=CACHES.get(model_name, "clean"),
        metric=metric,
        num_samples=num_samples,
        n_trials=n_trials,
    )


def paper_model(facts: ModelFacts) -> str | None:
    """The paper's model with the same family and number of MoE layers; None if there is none."""
    return _SHAPES.get((facts.family, facts.moe_layers))
