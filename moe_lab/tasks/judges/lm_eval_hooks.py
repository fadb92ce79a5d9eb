"""What lm-eval calls of a judged task: the filter that has all answers judged, and the metrics of one document.

The filter turns each answer into {judge: verdict or None}. An answer that a judge did not judge has no value of that
judge's metrics: lm-eval's mean, its standard error and all comparisons are over the judged ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.tasks.judges.judge import Exchange, Verdict
from moe_lab.tasks.versions import versioned

Verdicts = Callable[[Sequence[Exchange]], list[dict[str, Verdict | None]]]
"""Per exchange the verdict of each judge by name, None where it could not be asked."""
_verdicts: ContextVar[Verdicts | None] = ContextVar("verdicts", default=None)


@contextmanager
def judged_by(verdicts: Verdicts) -> Iterator[None]:
    """Within this, `judge_answers` calls `verdicts`."""
    token = _verdicts.set(verdicts)
    try:
        yield
    finally:
        _verdicts.reset(token)


@versioned("judges.judge_answers", 1)
def judge_answers(
    responses: Sequence[Sequence[str]], documents: Sequence[dict[str, Any]]
) -> list[dict[str, Verdict | None]]:
    """lm-eval filter: the verdicts on every document's first response. Raises ConfigError outside of a run."""
    verdicts = _verdicts.get()
    if verdicts is None:
        raise ConfigError("Answers of safety tasks are judged by runs only: they cannot be tuned on.")
    pairs = zip(documents, responses, strict=True)
    return verdicts([Exchange(document["instruction"], texts[0]) for document, texts in pairs])


@versioned("judges.score", 1)
def score(document: dict[str, Any], results: list[dict[str, Verdict | None]]) -> dict[str, float]:
    """lm-eval `process_results`: the scores of all judges that judged the document's answer."""
    (verdicts,) = results
    return {
        metric: value
        for verdict in verdicts.values()
        if verdict is not None
        for metric, value in verdict.get("scores", {}).items()
    }


def is_judged(task: Any) -> bool:
    """Whether an lm-eval task is scored by judges."""
    filters = task.get_config("filter_list") or []
    return any(step.get("filter_fn") is judge_answers for one in filters for step in one["filter"])


def keep_metrics(task: Any, metrics: Sequence[str]) -> None:
    """Of all metrics that judges have, let the task have these."""
    for known in (task._aggregation_list, task._higher_is_better):
        for metric in set(known) - set(metrics):
            del known[metric]
