"""RoE's Figure 5: the size of the plain model that the scaling law gives the same loss.

Time and memory of both models are measured (`measurement.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moe_lab.models.memory import ModelPool
from moe_lab.reports.papers.cells import TableCell
from moe_lab.results.score import Score
from moe_lab.runs.experiments.measurement import cost_measurement

ALPHA_N = 0.076
"""The exponent of model size in Kaplan et al. (2020), "Scaling Laws for Neural Language Models",
equation 1.1."""
MEASURED = (
    "non_embedding_parameters",
    "equivalent_non_embedding_parameters",
    "layers",
    "equivalent_layers",
    "new_tokens",
    "repetitions",
    "device",
)
"""Columns of a measurement that the figure's table has as they are."""


def size_ratio(loss: float, base_loss: float) -> float:
    """The factor by which the base model would have to grow to reach `loss`.

    It is (base_loss / loss)^(1 / ALPHA_N). Kaplan et al. give the loss as L(N) = (N_c / N)^alpha_N:
    N counts parameters without the embeddings, L is the cross-entropy in nats per token. A ratio of
    sizes needs neither N_c nor the number of tokens: both cancel. The two losses are of the same
    text, per token, per word or in sum.
    """
    return (base_loss / loss) ** (1 / ALPHA_N)


def equivalent_rows(
    cells: Sequence[TableCell], models: ModelPool, *, compute: bool = True
) -> list[dict[str, Any]]:
    """A row per cell with a perplexity, ordered by n: the equivalent model size, and the costs.

    The interval of the size is that of the paired difference in perplexity, resampled over
    documents. With `compute=False` cells whose time was not measured yet are left out.
    """
    rows = []
    for cell in cells:
        if not cell.results or cell.results[0].base_id is None:
            continue
        row = _row(cell, models, compute=compute)
        if row is not None:
            rows.append(row)
    return sorted(rows, key=lambda row: row["n"])


def _row(cell: TableCell, models: ModelPool, *, compute: bool) -> dict[str, Any] | None:
    """The row of a cell with results; None if its time is not measured."""
    result = cell.results[0]
    roe = result.report
    config = cell.config
    assert config is not None
    sizes = _sizes(cell)
    tuned = replace(config.method, n=roe["n"], temperature=roe["temperatures"], skip_layers=None)
    measured = cost_measurement(
        replace(config, method=tuned, batch_size=1),
        models,
        sizes["size_ratio"] or 1.0,
        compute=compute,
    )
    if measured is None:
        return None
    return sizes | _costs(measured, result.method.name)


def _sizes(cell: TableCell) -> dict[str, Any]:
    """The columns of a cell's perplexity and of the equivalent model size.

    A ratio is None where its perplexity is not known: a limit without an interval, or calibration.
    """
    score = cell.score()
    assert score is not None
    assert score.value is not None and score.baseline is not None
    base = score.baseline
    low = None
    high = None
    if score.tested_interval:  # of the difference: a lower perplexity is a larger model
        low = base + score.tested_interval[1]
        high = base + score.tested_interval[0]
    calibrated = _calibrated(cell, score)
    return {
        "model": score.model,
        "task": score.task,
        "documents": score.n,
        "seeds": score.seeds,
        "n": cell.results[0].report["n"],
        "metric": score.metric,
        "perplexity": score.value,
        "base_perplexity": base,
        "size_ratio": _ratio(score.value, base),
        "size_ratio_low": _ratio(low, base),
        "size_ratio_high": _ratio(high, base),
        "calibrated_perplexity": calibrated,
        "calibrated_size_ratio": _ratio(calibrated, base),
        "run_id": score.run_id,
    }


def _costs(measured: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The columns of a measurement: MEASURED, and time and memory of base model, method and larger
    model."""
    costs = {name: measured[name] for name in MEASURED}
    for name in ("base", method, "equivalent"):
        seconds = measured[name]["seconds"]
        costs[f"{name}_milliseconds_per_token"] = 1000 * seconds / measured["new_tokens"]
        costs[f"{name}_mebibytes"] = measured[name]["memory_bytes"] / 2**20
    return costs


def _calibrated(cell: TableCell, score: Score) -> float | None:
    """The perplexity of the base model at its best logit scale; None if a seed has none.

    It is the mean over seeds, whose studies may have found other scales.
    """
    perplexities = []
    for result in cell.results:
        perplexity = result.other_scores(score.task, "calibration").get(score.metric)
        if perplexity is None:
            return None
        perplexities.append(perplexity)
    return sum(perplexities) / len(perplexities)


def _ratio(perplexity: float | None, base: float) -> float | None:
    """`size_ratio` of two perplexities; None without a perplexity, as for a limit that is missing.

    The logarithms of perplexities per word are proportional to the losses per token.
    """
    if not perplexity:
        return None
    return size_ratio(math.log(perplexity), math.log(base))
