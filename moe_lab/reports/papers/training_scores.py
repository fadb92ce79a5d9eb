"""What a training measured as numbers of a paper's table, such as `training.validation_loss`.

They belong to the trained model, whatever task it is evaluated on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.reports.scores import Score, empty_score, pair
from moe_lab.results.statistics import over_seeds

TRAINING = "training."
"""What the names of these metrics begin with."""
LOSS = "training.validation_loss"
NO_TASK = "-"
"""Their coordinate on the axis of tasks."""
ROWS = "lower is better; intervals over rows, behind `seeds` over seeds (Student's)"
METRICS = {
    LOSS: ("validation", None, "loss", f"cross-entropy of held-out rows, nats per token, {ROWS}"),
    "training.leak": (
        "leak",
        "later_tokens",
        "difference",
        f"nats per token that router=expert gains from the later tokens of a row, against another row's, {ROWS}",
    ),
    "training.short_prefixes": (
        "leak",
        "short_prefixes",
        "difference",
        f"nats per token that router=expert loses by a prefix alone, against another row's later tokens, {ROWS}",
    ),
}
"""By metric: the block of `training` in results.json, its part, the number in it, and what it is."""


def training_score(results: Sequence[dict[str, Any]], metric: str) -> Score | None:
    """The score of a model, or the mean over models that differ in the seed; None without a result of a training.

    One model has an interval over held-out rows. Several have their standard deviation over seeds, and Student's
    interval over seeds alone. Raises ConfigError.
    """
    if metric not in METRICS:
        raise ConfigError(f"metric: {metric} is no number of a training. Choices: {', '.join(METRICS)}.")
    trained = [each for each in results if training_of(each)]
    if not trained:
        return None
    number = METRICS[metric][2]
    blocks = [_measured(each, metric) for each in trained]
    first = empty_score(trained[0], metric)
    marks = tuple(mark for mark in first.marks if mark != "PARTIAL")  # held-out rows do not depend on limit=
    score = replace(first, n=None, marks=marks, seeds=len(blocks))
    values = [each[number] for each in blocks if each is not None]
    if len(values) < len(blocks):
        return score
    if len(blocks) == 1:
        return replace(score, value=values[0], interval=pair(blocks[0]["ci95"]))
    spread = over_seeds(values)
    run_ids = " ".join(each["moe_lab"]["run_id"] for each in trained)
    return replace(
        score, run_id=run_ids, value=spread["mean"], std=spread["std"], seed_interval=pair(spread["ci95"])
    )


def training_of(results: dict[str, Any]) -> dict[str, Any]:
    """The course of the training of a run's model; empty for a run of another method."""
    found: dict[str, Any] = results["moe_lab"].get("pretrain", {}).get("training", {})
    return found


def told_of(metric: str) -> str:
    """What a metric is."""
    return METRICS[metric][3]


def _measured(results: dict[str, Any], metric: str) -> Any:
    """The block with the number and its interval; None if the design has none, or was trained by an earlier version."""
    name, part, *_ = METRICS[metric]
    block = training_of(results).get(name)
    return block if block is None or part is None else block.get(part)
