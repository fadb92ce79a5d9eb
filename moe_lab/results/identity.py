"""What a run's id is made of: the SHA-256 of all that determines its numbers, and of nothing else.

The device and the speed are recorded, not hashed. The three sets classify every field of `Config`.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from inspect import unwrap
from typing import Any

from moe_lab.models.lm_eval_internals import set_settings
from moe_lab.results.code import function_identity

HASHED = frozenset(
    {
        "apply_chat_template",
        "fewshot_as_multiturn",
        "fewshot_seed",
        "max_length",
        "predict_only",
        "system_instruction",
    }
)
"""Fields that are hashed as they are."""
RESOLVED = frozenset(
    {
        "model",
        "method",
        "task",
        "seed",
        "dtype",
        "limit",
        "samples",
        "samples_per_document",
        "sample_seed",
        "num_fewshot",
        "gen_kwargs",
        "data_dir",
    }
)
"""Fields that are hashed as what they resolve to: content, document numbers, the task's settings,
the dtype."""
RUNTIME = frozenset(
    {
        "mode",
        "seeds",
        "batch_size",
        "max_batch_size",
        "device",
        "output_dir",
        "offline",
        "baseline",
        "rerun",
        "wait",
        "metrics",
        "experiment",
        "scale",
        "overrides",
        "config_dirs",
        "logger",
        "launcher",
        "tuning",
        "distributed",
        "a",
        "b",
    }
)
"""Fields that do not change numbers. The temperatures of a tuned run are part of its method."""

UNNAMED = frozenset({"custom_dataset", "dataset_kwargs", "metadata", "task_alias", "tag"})
"""Keys of an lm-eval task that are not hashed: paths and names. The documents themselves are."""


def run_id(content: Mapping[str, object]) -> str:
    """SHA-256 of the canonical JSON: sorted keys, no spaces, no NaN."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def task_settings(task: Any) -> dict[str, object]:
    """An lm-eval task's version, configuration and code, without paths and unset keys.

    A function is represented by `function_identity`. The key `code` is absent for a task without
    code of its own.
    """
    settings = {
        key: value for key, value in set_settings(task.config).items() if key not in UNNAMED
    }
    choices = settings.get("doc_to_choice")
    if isinstance(choices, dict):
        settings["doc_to_choice"] = list(choices.items())  # their order counts
    identity = {"version": str(task.VERSION), **_plain(settings)}
    code = getattr(task, "code", None)
    if code:
        identity["code"] = _plain(code)
    return identity


def group_settings(group: Any) -> dict[str, object]:
    """An lm-eval group's version, tasks, aggregated metrics and code."""
    metrics = _plain(group.aggregate_metric_list)
    code = _plain(getattr(group, "code", None))
    return {
        "version": group.version,
        "tasks": sorted(group.child_names),
        "metrics": metrics,
        "code": code,
    }


def _plain(value: Any) -> Any:
    """The value as JSON for an id. Keys whose value is None are left out of dictionaries; functions
    become `function_identity`, other objects their attributes."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    value = unwrap(value)
    if isinstance(value, partial):
        return {
            "call": _plain(value.func),
            "args": _plain(value.args),
            "kwargs": _plain(value.keywords),
        }
    if callable(value):
        return function_identity(value)
    return _plain(vars(value)) if hasattr(value, "__dict__") else str(value)
