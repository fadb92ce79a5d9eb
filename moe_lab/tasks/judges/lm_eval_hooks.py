"""The functions of a judged task that lm-eval calls: the filter that judges all answers, and the metrics of a document.

The filter turns each answer into {judge: verdict or None}. An answer without a judge's verdict has no value of that
judge's metrics: lm-eval's mean, its standard error and all comparisons are over the judged answers.
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
"""Returns the verdict of each judge by name, per exchange; None if the judge could not be reached."""
_verdicts: ContextVar[Verdicts | None] = ContextVar("verdicts", default=None)


@contextmanager
def judged_by(verdicts: Verdicts) -> Iterator[None]:
    """Within this context `judge_answers` calls `verdicts`."""
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
    """Remove all other metrics of judges from the task."""
    for known in (task._aggregation_list, task._higher_is_better):
        for metric in set(known) - set(metrics):
            del known[metric]
