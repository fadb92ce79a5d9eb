"""A task's configuration, in the form of 0.4 and in that of the installed lm-eval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import unwrap
from typing import Any

from moe_lab.tasks.lm_eval_versions import has_scorers


def without_group(config: Mapping[str, Any]) -> dict[str, Any]:
    """A task's configuration without the name of its group, which 0.5 puts in front of the task's
    name in results."""
    return {key: value for key, value in config.items() if key != "_qualified_name"}


def as_installed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A task's configuration for the installed lm-eval.

    0.5 reads the split of few-shot examples in `fewshot_split` alone, and takes no mapping of
    choices. Its filters return a list for each document, and its metrics take the items. A filter
    of this package that ends a pipeline returns one value for each document: here a list of it.
    """
    installed = dict(config)
    if not has_scorers():
        return installed
    split = (config.get("fewshot_config") or {}).get("split")
    if split is not None:
        installed["fewshot_split"] = split
    if isinstance(config.get("doc_to_choice"), dict):
        installed["doc_to_choice"] = list(config["doc_to_choice"].values())
    if isinstance(config.get("filter_list"), list):
        pipelines = []
        for pipeline in config["filter_list"]:
            *steps, last_step = pipeline["filter"]
            function = last_step.get("filter_fn")
            if function is not None and _is_of_this_package(function):
                last_step = {**last_step, "filter_fn": partial(_in_lists, function)}
            pipelines.append({**pipeline, "filter": [*steps, last_step]})
        installed["filter_list"] = pipelines
    return installed


def _is_of_this_package(function: Any) -> bool:
    """Whether a function is one of this package, also with some of its arguments set."""
    while isinstance(function, partial):
        function = function.func
    module: str = unwrap(function).__module__
    return module.partition(".")[0] == "moe_lab"


def _in_lists(
    filter_fn: Callable[..., Sequence[Any]], responses: Any, documents: Any
) -> list[list[Any]]:
    """The filter `filter_fn`, which gives one value for each document, in the form of 0.5: a list
    with that value."""
    return [[value] for value in filter_fn(list(responses), documents)]


def keep_given_form(task: Any, given: Mapping[str, Any]) -> None:
    """Let a task's configuration have metrics and filters as they were given, once its documents
    are read.

    0.5 replaces them by what it makes of them. Run ids, and all that reads the configuration, take
    them as given.
    """
    for key in ("metric_list", "filter_list", "fewshot_split"):
        setattr(task.config, key, given.get(key))
    if not task.config.generation_kwargs:
        task.config.generation_kwargs = None


def choices_as_prompts(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose choices are the prompts of a task that has one for each, in 0.4's form.

    In 0.5 `doc_to_text` has the prompts of such a task (`multiple_inputs`), `doc_to_choice` the
    text after them, and `doc_to_target` the place of the right prompt. In 0.4 these are
    `doc_to_choice`, `doc_to_target` and `doc_to_text`.
    """
    if not config.get("multiple_inputs"):
        return dict(config)
    texts_after_prompts = config["doc_to_choice"]

    def shared_text(document: Any) -> str:
        [text] = texts_after_prompts(document)
        return str(text)

    return {
        **config,
        "doc_to_text": config["doc_to_target"],
        "doc_to_choice": config["doc_to_text"],
        "doc_to_target": shared_text,
        "multiple_inputs": False,
    }
