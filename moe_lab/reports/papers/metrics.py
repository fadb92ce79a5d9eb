"""Numbers of a paper's table that are not scores of lm-eval: expert metrics, and measurements of a training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moe_lab.config.validators import one_of
from moe_lab.metrics.registry import counted_metrics, interventions
from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.expert import expert_lines
from moe_lab.results.measured import Value
from moe_lab.results.model import BASE, RunResult
from moe_lab.results.score import Score
from moe_lab.results.scores import empty_score
from moe_lab.results.statistics import over_seeds

# Expert metrics as numbers of a paper's table: `expert.load_balance`, `expert.capacity_most` and so on
#
# The names are those of counted metrics and of interventions in `moe_lab/metrics/registry.py`.

EXPERT = "expert."
"""The prefix of the names of expert metrics."""


def expert_score(result: RunResult, stored: StoredMetrics, metric: str, other: str = BASE) -> Score:
    """One metric of a run's expert_metrics.json, over all its tokens and tasks, with the difference to another run.

    Raises ConfigError for a metric that does not exist.
    """
    known = [*counted_metrics(), *(each.name for _, each in interventions())]
    one_of("metric", metric, [f"{EXPERT}{name}" for name in known])
    score, name = replace(empty_score(result, metric), other=other), metric.removeprefix(EXPERT)
    lines = [line for line in expert_lines(stored) if line.name == name]
    if not lines:  # a method that allows no interventions
        return score
    # the documents of several tasks
    line = next((one for one in lines if one.task == "all"), lines[0])
    to = stored.difference("baseline" if other == BASE else other, *line.path)
    return replace(
        score,
        value=line.value,
        interval=line.interval,
        difference=to.difference,
        difference_interval=to.interval,
    )


def unit_of(metric: str) -> str:
    """The unit of an expert metric."""
    return "bits" if metric.removeprefix(EXPERT) in counted_metrics() else "accuracy lost"


# Measurements of a training as numbers of a paper's table, such as `training.validation_loss`
#
# They belong to the trained model. The task of the evaluation does not matter.

TRAINING = "training."
"""The prefix of the names of these metrics."""
LOSS = "training.validation_loss"
NO_TASK = "-"
"""The coordinate of these metrics on the axis of tasks."""
ROWS = "lower is better; intervals over rows, after `seeds` over seeds (Student's)"
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
"""The block of `training` in results.json, its part, the number's key, and the meaning, by metric."""


def training_score(results: Sequence[RunResult], metric: str) -> Score | None:
    """The score of a model, or the mean over models that differ in the seed; None without a result of a training.

    One model has an interval over held-out rows. Several have their standard deviation over seeds, and Student's
    interval over seeds alone. Raises ConfigError.
    """
    one_of("metric", metric, list(METRICS))
    trained = [each for each in results if training_of(each)]
    if not trained:
        return None
    found = [_measured(each, metric) for each in trained]
    first = empty_score(trained[0], metric)
    # held-out rows do not depend on limit=
    marks = tuple(mark for mark in first.marks if mark != "PARTIAL")
    score = replace(first, n=None, marks=marks, seeds=len(found))
    values = [each.value for each in found if each is not None and each.value is not None]
    if len(values) < len(found):
        return score
    if found[0] is not None and len(found) == 1:
        return replace(score, value=found[0].value, interval=found[0].interval)
    spread = over_seeds(values)
    run_ids = " ".join(each.run_id for each in trained)
    return replace(
        score, run_id=run_ids, value=spread.mean, std=spread.std, seed_interval=spread.interval
    )


def training_of(result: RunResult) -> Mapping[str, Any]:
    """The course of the training of a pre-trained model; empty for a run of another method."""
    found: Mapping[str, Any] = result.report.get("training") or {}
    return found if "leak" in found else {}


def model_folder(result: RunResult) -> Path | None:
    """The folder of the model that was trained for a run; None for a run without one.

    Soft prompts and prefixes report a training, but no model.
    """
    if "training" not in result.report or "model" not in result.report or result.folder is None:
        return None
    return result.folder.parent.parent / "models" / result.report["model"]


def _measured(result: RunResult, metric: str) -> Value | None:
    """The number of a training; None if the design has none."""
    name, part, number, _ = METRICS[metric]
    block = training_of(result).get(name)
    found = block if block is None or part is None else block.get(part)
    return None if found is None else Value.model_validate({**found, "value": found[number]})


def quantity(metric: str) -> str:
    """The label of an axis of scores: the metric and its unit.

    >>> quantity("expert.load_balance"), quantity("acc,none")
    ('load balance, bits', 'acc')
    """
    if metric.startswith(TRAINING):
        return "nats per token"
    if not metric.startswith(EXPERT):
        return metric.partition(",")[0]
    return f"{metric.removeprefix(EXPERT).replace('_', ' ')}, {unit_of(metric)}"
