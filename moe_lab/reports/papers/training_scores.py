"""Measurements of a training as numbers of a paper's table, such as `training.validation_loss`.

They belong to the trained model. The task of the evaluation does not matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from moe_lab.config.validators import one_of
from moe_lab.results.measured import Value
from moe_lab.results.model import RunResult
from moe_lab.results.score import Score
from moe_lab.results.scores import empty_score
from moe_lab.results.statistics import over_seeds

TRAINING = "training."
"""The prefix of the names of these metrics."""
LOSS = "training.validation_loss"
NO_TASK = "-"
"""The coordinate of these metrics on the axis of tasks."""
ROWS = "lower is better; intervals over rows, after `seeds` over seeds (Student's)"


class TrainingMetric(NamedTuple):
    """A number in the block `training` of results.json."""

    block: str
    part: str | None
    """A key of the block; None: the block itself."""
    key: str
    """Of the number, next to its interval."""
    meaning: str


METRICS = {
    LOSS: TrainingMetric(
        "validation", None, "loss", f"cross-entropy of held-out rows, nats per token, {ROWS}"
    ),
    "training.leak": TrainingMetric(
        "leak",
        "later_tokens",
        "difference",
        "nats per token that router=expert gains from the later tokens of a row, against another "
        f"row's, {ROWS}",
    ),
    "training.short_prefixes": TrainingMetric(
        "leak",
        "short_prefixes",
        "difference",
        "nats per token that router=expert loses by a prefix alone, against another row's later "
        f"tokens, {ROWS}",
    ),
}


def training_score(results: Sequence[RunResult], metric: str) -> Score | None:
    """The score of a model, or the mean over models that differ in the seed.

    One model has an interval over held-out rows. Several have their standard deviation over seeds,
    and Student's interval over seeds alone.

    None without a result of a training; a score whose value is None if a design has no such number.
    Raises ConfigError for an unknown metric.
    """
    one_of("metric", metric, list(METRICS))
    trained = [result for result in results if training_of(result)]
    if not trained:
        return None
    measurements = [_measured(result, METRICS[metric]) for result in trained]

    first = empty_score(trained[0], metric)
    # held-out rows do not depend on limit=
    marks = tuple(mark for mark in first.marks if mark != "PARTIAL")
    score = replace(first, n=None, marks=marks, seeds=len(trained))

    values = []
    for measurement in measurements:
        if measurement is None or measurement.value is None:
            return score
        values.append(measurement.value)

    if len(measurements) == 1 and measurements[0] is not None:
        return replace(score, value=values[0], interval=measurements[0].interval)
    spread = over_seeds(values)
    run_ids = " ".join(result.run_id for result in trained)
    return replace(
        score, run_id=run_ids, value=spread.mean, std=spread.std, seed_interval=spread.interval
    )


def training_of(result: RunResult) -> Mapping[str, Any]:
    """The course of the training of a pre-trained model; empty for a run of another method."""
    training: Mapping[str, Any] = result.report.get("training") or {}
    if "leak" not in training:
        return {}
    return training


def model_folder(result: RunResult) -> Path | None:
    """The folder of the model that was trained for a run; None for a run without one.

    Soft prompts and prefixes report a training, but no model.
    """
    if "training" not in result.report or "model" not in result.report or result.folder is None:
        return None
    return result.folder.parent.parent / "models" / result.report["model"]


def _measured(result: RunResult, metric: TrainingMetric) -> Value | None:
    """The number of a training; None if the design has none."""
    measured = training_of(result).get(metric.block)
    if measured is not None and metric.part is not None:
        measured = measured.get(metric.part)
    if measured is None:
        return None
    return Value.model_validate({**measured, "value": measured[metric.key]})
