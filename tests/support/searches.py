"""A search of three temperatures, and a value of them that a test knows."""

from moe_lab.runs.tuning.temperatures import LayerTemperatures


def search(n_trials: int, metric: str = "perplexity") -> LayerTemperatures:
    return LayerTemperatures(
        method=None,
        tuning="tpe",
        metric=metric,
        n_trials=n_trials,
        num_samples=4,
        moe_layers=5,
        max_temperature=0.5,
        skip_layers=1,
    )


def value(temperatures: list[float]) -> float:
    """The squared distance from 0.2 in every layer."""
    return sum((t - 0.2) ** 2 for t in temperatures)
