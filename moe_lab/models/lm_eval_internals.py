"""What lm-eval 0.4 and the development release of 0.5 name differently, in one place."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any


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
    """The function from a metric's values to the score, as lm-eval registers it; None for an unknown metric."""
    from lm_eval.api import registry

    if hasattr(registry, "metric_agg_registry"):
        return registry.metric_agg_registry.get(name, None)
    metric = registry.metric_registry.get(name, None)
    return metric.aggregation if metric else None
