"""Loads the lm-eval tasks of `task=` and applies the run's few-shot, generation and data
settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from moe_lab.errors import ConfigError, MoeLabError, TaskError
from moe_lab.models.lm_eval_internals import keep_compiled_templates
from moe_lab.results.code_digest import forget_edited_code
from moe_lab.tasks.judges import is_judged, judge_class, judge_names

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config
    from moe_lab.tasks.holdout import Holdout


MAX_NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""lm-eval's names of the number of new tokens, in its order of precedence."""

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
"""Generation settings that turn sampling on."""

_cache: dict[Hashable, Any] | None = None
T = TypeVar("T")


@contextmanager
def task_cache() -> Iterator[None]:
    """Within this context `load_tasks` returns the same objects for equal settings, and `once` the
    same values for equal keys: a grid reads each data set once.

    An inner context begins with nothing.
    """
    global _cache
    if _cache is None:
        forget_edited_code()
    outer = _cache
    _cache = {}
    try:
        yield
    finally:
        _cache = outer


def once(key: Hashable, compute: Callable[[], T]) -> T:
    """The value of `compute`, or its MoeLabError, computed once for each key within `task_cache`.

    Args:
        key: has all that determines the value. No other value has an equal key: a text that says
            which value it is, or a frozen dataclass for this value alone.
    """
    if _cache is None:
        return compute()
    if key not in _cache:
        try:
            _cache[key] = compute()
        except MoeLabError as error:  # a missing model or data set is looked up once, too
            _cache[key] = error
    value: T | MoeLabError = _cache[key]
    if isinstance(value, MoeLabError):
        raise value
    return value


def load_tasks(
    config: Config, holdout: Holdout | None = None, splits: tuple[str, ...] = ()
) -> TaskDict:
    """The tasks of `config.task` with their documents, ready for `lm_eval.evaluate`.

    Args:
        holdout: evaluate tuning documents (`documents.py`) instead of the test set.
        splits: evaluate the first available one of these instead of the test set. Each is the name
            of a split, or lm-eval's key of one (`training_split`).

    Returns lm-eval's own {"tasks": {name: Task}, "groups": {...}, "group_map": {...}}. Raises
    TaskError for an unknown task, missing or malformed data, and settings that the task cannot
    have.
    """
    key = _TasksKey(task_key(config), holdout, splits)
    return once(key, lambda: _build(config, holdout, splits))


@dataclass(frozen=True)
class _TasksKey:
    """All that determines loaded tasks."""

    settings: str
    """`task_key`"""
    holdout: Holdout | None
    splits: tuple[str, ...]


def task_key(config: Config) -> str:
    """All settings that determine the tasks of a configuration, as text: some are not hashable."""
    documents = (config.task, config.data_dir, config.num_fewshot, config.fewshot_seed)
    answers = (
        config.gen_kwargs,
        config.predict_only,
        config.samples_per_document,
        config.apply_chat_template,
        judge_names(config),
    )
    return repr((documents, answers, config.think_end_token, config.model.max_gen_toks))


def _build(config: Config, holdout: Holdout | None, splits: tuple[str, ...]) -> TaskDict:
    """`load_tasks`, without looking for tasks that are loaded already."""
    from datasets import disable_caching, enable_caching, is_caching_enabled

    from moe_lab.tasks.factory import build_tasks
    from moe_lab.tasks.lm_eval_versions.documents import is_multimodal

    _prepare_lm_eval()
    seed_as_lm_eval()
    names = [config.task.name] if isinstance(config.task.name, str) else list(config.task.name)
    enabled = is_caching_enabled()
    disable_caching()  # `datasets` would find the rows of another function of the same name
    try:
        tasks = build_tasks(names, config, holdout, splits)
    finally:
        if enabled:
            enable_caching()
    if not tasks["tasks"]:
        raise TaskError(f"task.name={config.task.name} holds no task.")
    for name, task in tasks["tasks"].items():
        if is_multimodal(task):
            raise TaskError(f"Task {name} needs images or sound. Only text is supported.")
        if (holdout is not None or splits) and is_judged(task):
            raise TaskError(
                f"Task {name} has no right answers, because judges score its answers. It can be "
                "evaluated, but neither tuned on nor used as references."
            )
        _apply_settings(task, config)
    return tasks


def _apply_settings(task: Any, config: Config) -> None:
    """Apply the run's settings, as `lm_eval.simple_evaluate` does before evaluating. They override
    the task's."""
    from moe_lab.tasks.fewshot import prepare_examples
    from moe_lab.tasks.lm_eval_versions.documents import executes_code
    from moe_lab.tasks.lm_eval_versions.metrics import keep_metrics, leave_out_metrics

    if config.think_end_token is not None:
        _answer_after(config.think_end_token, config.model.max_gen_toks, task)
    if config.gen_kwargs and task.get_config("output_type") == "generate_until":
        task_settings = task.get_config("generation_kwargs") or {}
        settings = generation_settings(task_settings, config.gen_kwargs)
        task.set_config(key="generation_kwargs", value=settings)
    judged = is_judged(task)
    if judged and not config.predict_only:
        metrics: set[str] = set()
        for name in judge_names(config):
            metrics.update(judge_class(name).metrics)
        keep_metrics(task, metrics)
    if config.predict_only:
        # the filter of such a task executes programs or calls judges
        leave_out_metrics(task, keep_filters=not (executes_code(task) or judged))
    if config.num_fewshot is not None:
        task.set_config(key="num_fewshot", value=config.num_fewshot)
    elif task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    prepare_examples(task)
    task.set_fewshot_seed(seed=config.fewshot_seed)


def _answer_after(think_end: str, least: int | None, task: Any) -> None:
    """Score a task's choices and texts after `think_end`, and generate replies that reason before
    it.

    A task's `gen_prefix` begins the answer itself, so there is no reasoning before it.

    Args:
        least: new tokens of a reply where the task allows fewer; None: the task's number.
    """
    from moe_lab.engine.hf import THINK_END
    from moe_lab.engine.planned import NEW_TOKENS

    if task.get_config("gen_prefix") or task.OUTPUT_TYPE == "loglikelihood_rolling":
        return
    if task.OUTPUT_TYPE == "generate_until":
        settings = task.get_config("generation_kwargs") or {}
        new_tokens = NEW_TOKENS
        for key in MAX_NEW_TOKENS:
            if settings.get(key) is not None:
                new_tokens = settings[key]
                break
        reasoning = {"max_gen_toks": max(least or 0, new_tokens), THINK_END: think_end}
        task.set_config(key="generation_kwargs", value=generation_settings(settings, reasoning))
        return
    construct = task.construct_requests

    @wraps(construct)
    def after_reasoning(doc: Any, ctx: Any, **options: Any) -> Any:
        if isinstance(ctx, list):  # WinoGrande has a prompt for each choice
            prompts = [prompt + think_end for prompt in ctx]
            return construct(doc, prompts, **options)
        return construct(doc, ctx + think_end, **options)

    task.construct_requests = after_reasoning
    task.set_config(key=THINK_END, value=think_end)  # a part of the run's identity


def generation_settings(settings: dict[str, Any], gen_kwargs: dict[str, Any]) -> dict[str, Any]:
    """A task's generation settings, overridden by those of `gen_kwargs`.

    lm-eval has several names for the number of new tokens: one of them in `gen_kwargs` replaces the
    task's number under any of them. Without do_sample, a sampling setting in `gen_kwargs` turns
    sampling on, and temperature=0 turns it off.
    """
    merged = dict(settings)
    if any(key in gen_kwargs for key in MAX_NEW_TOKENS):
        for key in MAX_NEW_TOKENS:
            merged.pop(key, None)
    merged |= gen_kwargs
    if "do_sample" not in gen_kwargs and any(key in gen_kwargs for key in SAMPLING):
        merged["do_sample"] = gen_kwargs.get("temperature") != 0
    if merged.get("do_sample") and merged.get("temperature") == 0:
        if "temperature" in gen_kwargs:
            raise ConfigError(
                "gen_kwargs: temperature=0 is greedy decoding: leave do_sample=true out."
            )
        del merged["temperature"]  # the task's own, for greedy decoding
    return merged


def seed_as_lm_eval() -> None:
    """Set the global seeds as `lm_eval.simple_evaluate` does: some tasks shuffle documents or
    choices with them."""
    import random

    import numpy

    random.seed(0)
    numpy.random.seed(1234)


@cache
def _prepare_lm_eval() -> None:
    """Log only the errors of lm-eval, which logs every default, and keep the templates that it has
    compiled.

    It would compile them for each document, which takes longer than filling them in.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    keep_compiled_templates()
