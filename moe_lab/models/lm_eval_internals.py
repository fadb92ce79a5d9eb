"""What lm-eval 0.4 and the development release of 0.5 name differently, in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

TEXT = "loglikelihood_rolling"
"""lm-eval's name of the request for the log-likelihood of a whole text."""


def rendered_template(template: str, document: dict[str, Any]) -> str:
    """A template of a task's YAML, filled in with a document."""
    try:
        from lm_eval.config.templates import apply_template
    except ImportError:
        from lm_eval.utils import apply_template
    return apply_template(template, document)


def compiled_template(template: str) -> Any:
    """A template of a task's YAML, compiled. Raises jinja's error for one that is none."""
    try:
        from lm_eval.config.templates import _jinja_env
    except ImportError:
        from lm_eval.utils import env
    else:
        env = _jinja_env()
    return env.from_string(template)


def keep_compiled_templates() -> None:
    """Let lm-eval 0.4 compile each template once, as 0.5 does, and not for every document."""
    try:
        from lm_eval.utils import env
    except ImportError:
        return
    env.from_string = lru_cache(maxsize=1024)(env.from_string)


def aggregation_of_metric(name: str) -> Callable | None:
    """The function from a metric's values to the score, as lm-eval registers it; None for an
    unknown metric."""
    from lm_eval.api import registry

    if hasattr(registry, "metric_agg_registry"):
        return registry.metric_agg_registry.get(name, None)
    metric = registry.metric_registry.get(name, None)
    return plain_aggregation(metric.aggregation) if metric else None


def plain_aggregation(function: Callable) -> Callable:
    """The function of 0.4 for a perplexity's method of 0.5, which is the same: statistics know it
    by its name."""
    from lm_eval.api import metrics

    functions = {
        "Perplexity": metrics.perplexity,
        "WordPerplexity": metrics.weighted_perplexity,
        "BytePerplexity": metrics.weighted_perplexity,
        "BitsPerByte": metrics.bits_per_byte,
    }
    owner = getattr(function, "__self__", None)
    if owner is None or type(owner).__module__ != "lm_eval.api.metrics.corpus":
        return function
    return functions.get(type(owner).__name__, function)


def set_settings(config: Any) -> dict[str, Any]:
    """The settings of a task, without those that 0.5 adds to all tasks: run ids hash what both
    versions have."""
    settings = dict(vars(config))
    settings.pop("_qualified_name", None)
    for name in ("multiple_inputs", "multiple_targets"):
        if settings.get(name) is False:
            del settings[name]
    return settings


# Requests for a whole text. In 0.4 they are (text,) and answered by a number. In 0.5 they are ("",
# text) and answered, as a continuation is, by (log-likelihood, whether greedy), which is always
# False. This package has the form of 0.4.


def _texts_are_continuations() -> bool:
    """Whether a whole text is asked for and answered as a continuation of an empty context."""
    from lm_eval.api import task

    return hasattr(task, "LoglikelihoodRollingTask")


def request_arguments(instance: Any) -> tuple[Any, ...]:
    """The arguments of an instance of lm-eval; of a whole text the text alone."""
    if instance.request_type == TEXT:
        return tuple(instance.args)[-1:]
    return tuple(instance.args)


def instance_of(kind: str, arguments: Sequence[Any]) -> Instance:
    """lm-eval's instance of a request, without a document."""
    from lm_eval.api.instance import Instance

    asked = tuple(arguments)
    if kind == TEXT and _texts_are_continuations():
        asked = ("", *asked)
    request: Any = {"request_type": kind, "doc": {}, "arguments": asked}
    return Instance(**request, idx=0, task_name="", doc_id=0)


def answers_for_lm_eval(kind: str, answers: list[Any]) -> list[Any]:
    """Answers to requests of a kind in the form that lm-eval expects."""
    if kind == TEXT and _texts_are_continuations():
        return [(answer, False) for answer in answers]
    return answers


def answers_of_lm_eval(kind: str, answers: list[Any]) -> list[Any]:
    """Answers of a model of lm-eval to requests of a kind; to a whole text the log-likelihood
    alone."""
    if kind == TEXT and _texts_are_continuations():
        return [answer[0] for answer in answers]
    return answers
