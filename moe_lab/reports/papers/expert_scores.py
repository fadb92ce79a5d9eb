"""Expert metrics as numbers of a paper's table, such as `expert.load_balance`.

The names are those of counted metrics and of interventions in `moe_lab/metrics/registry.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from moe_lab.config.validators import one_of
from moe_lab.metrics.registry import counted_metrics, interventions
from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.expert import ExpertLine, expert_lines
from moe_lab.reports.papers.metric_names import EXPERT
from moe_lab.results.model import BASE, RunResult
from moe_lab.results.score import Score
from moe_lab.results.scores import empty_score


def expert_metric_names() -> list[str]:
    """The names of all expert metrics in a paper's table."""
    names = list(counted_metrics())
    names += [intervention.name for _, intervention in interventions()]
    return [f"{EXPERT}{name}" for name in names]


def expert_score(result: RunResult, stored: StoredMetrics, metric: str, other: str = BASE) -> Score:
    """One metric of a run's expert_metrics.json, with the difference to another run.

    It is over all tokens and tasks of the run. A metric that the run's method does not allow gives
    a score without numbers. Raises ConfigError for a metric that does not exist.
    """
    one_of("metric", metric, expert_metric_names())

    score = replace(empty_score(result, metric), other=other)
    name = metric.removeprefix(EXPERT)
    lines = [line for line in expert_lines(stored) if line.name == name]
    if not lines:  # a method that allows no interventions
        return score
    line = _line_of_all_tasks(lines)
    difference = stored.difference("baseline" if other == BASE else other, *line.path)
    return replace(
        score,
        value=line.value,
        interval=line.interval,
        difference=difference.difference,
        difference_interval=difference.interval,
    )


def _line_of_all_tasks(lines: Sequence[ExpertLine]) -> ExpertLine:
    """The line of the documents of several tasks; else the first line."""
    for line in lines:
        if line.task == "all":
            return line
    return lines[0]
