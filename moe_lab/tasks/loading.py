"""From `task=` to lm-eval task objects, with the run's few-shot, generation and data settings applied."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError, TaskError
from moe_lab.tasks.generation import MAX_NEW_TOKENS
from moe_lab.tasks.judges.registry import judge_names

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.tasks.manager import TaskDict, TaskManager

    from moe_lab.config.schema import Config
    from moe_lab.tasks.tuning_split import Holdout

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
"""Generation settings that ask for sampling."""

OWN_TASKS = Path(__file__).resolve().parent


_kept: dict[str, TaskDict] | None = None


@contextmanager
def keeping_tasks() -> Iterator[None]:
    """Within this, equal requests for tasks get the same objects: a grid reads each data set once."""
    global _kept
    outer, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = outer


def load_tasks(config: Config, holdout: Holdout | None = None, splits: tuple[str, ...] = ()) -> TaskDict:
    """The tasks of `config.task` with their documents, ready for `lm_eval.evaluate`.

    With `holdout` they evaluate documents to tune on (see `held_out.py`) in the place of their test. With `splits` they
    evaluate the first of these that there is: a split's name, or lm-eval's key for one (`training_split`).

    Returns lm-eval's own {"tasks": {name: Task}, "groups": {...}, "group_map": {...}}. Raises TaskError for an
    unknown task, missing or malformed data, and settings that the task cannot have.
    """
    if _kept is None:
        return _build(config, holdout, splits)
    settings = ("data_dir", "num_fewshot", "fewshot_seed", "gen_kwargs", "predict_only")
    key = repr(
        (config.task, judge_names(config), [getattr(config, name) for name in settings], holdout, splits)
    )
    if key not in _kept:
        _kept[key] = _build(config, holdout, splits)
    return _kept[key]


def _build(config: Config, holdout: Holdout | None, splits: tuple[str, ...]) -> TaskDict:
    from moe_lab.tasks.factory import TaskSettings, build_tasks

    _quiet_lm_eval()
    seed_as_lm_eval()
    names = [config.task.name] if isinstance(config.task.name, str) else list(config.task.name)
    if not names:
        raise TaskError("task.name is empty. Name an lm-eval task, or a list of them.")
    manager, specs = _find(tuple(names), config.task.include_path)
    tasks = build_tasks(manager, specs, TaskSettings.of(config, names, holdout, splits))
    if not tasks["tasks"]:
        raise TaskError(f"task.name={config.task.name} holds no task.")
    for name, task in tasks["tasks"].items():
        _refuse_unsupported(name, task)
        if holdout is not None or splits:
            _refuse_judged(name, task)
        _apply_settings(task, config)
    return tasks


@lru_cache(maxsize=256)
def task_file(name: str) -> Path | None:
    """The one YAML file that defines a task of this name, or None: a group, a tag, no task at all, or several files.

    A file of that name is found in a tenth of a second, any other by the text of all files in half a second; indexing
    them, as lm-eval does, takes ten times that.
    """
    from importlib.util import find_spec

    spec = find_spec("lm_eval")
    assert spec is not None and spec.origin is not None
    roots = (OWN_TASKS, Path(spec.origin).parent / "tasks")
    quoted = re.escape(name.encode())
    defines = re.compile(
        rb"""^["']?task["']?:[ ]*["']?""" + quoted + rb"""["']?[ ]*(?:#.*)?\r?$""", re.MULTILINE
    )
    for root in roots:
        files = [file for file in root.rglob("*.yaml") if file.stem == name and _task_of(file) == name]
        files = files or [file for file in root.rglob("*.yaml") if defines.search(file.read_bytes())]
        if files:
            return files[0] if len(files) == 1 and _task_of(files[0]) == name else None
    return None


def _task_of(file: Path) -> Any:
    from lm_eval.tasks._yaml_loader import load_yaml

    return load_yaml(file, resolve_func=False).get("task")


def _find(names: tuple[str, ...], include_path: str | None) -> tuple[TaskManager, list[str]]:
    """A task manager and what to load from it: single files where each name is one, else the whole index."""
    from lm_eval.tasks import TaskManager

    if include_path is None:
        files = [task_file(name) for name in names]
        if all(files):
            return TaskManager(include_defaults=False), [str(file) for file in files]
    elif not Path(include_path).is_dir():
        raise TaskError(
            f"task.include_path={include_path} is no folder. Name the folder that holds the task YAMLs."
        )
    try:
        manager = _full_index(include_path)
    except Exception as error:  # whatever lm-eval makes of a YAML that is no task's
        if include_path is None:
            raise
        raise TaskError(
            f"task.include_path={include_path}: lm-eval cannot read the YAML files in it ({error}). Name a folder that "
            "holds task YAMLs alone."
        ) from error
    for name in names:
        if name not in manager.task_index:
            raise TaskError(_unknown_task(name, manager.all_tasks))
    return manager, list(names)


@lru_cache(maxsize=2)
def _full_index(include_path: str | None) -> TaskManager:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=[str(OWN_TASKS), *([include_path] if include_path else [])])


def _unknown_task(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f" Did you mean {', '.join(repr(match) for match in close)}?" if close else ""
    return f"task.name={name} is no lm-eval task, group or tag.{hint}\nAll names: lm-eval ls tasks"


def _refuse_unsupported(name: str, task: Task) -> None:
    if getattr(task, "MULTIMODAL", False):
        raise TaskError(f"Task {name} needs images or sound. Only text is supported.")


def _refuse_judged(name: str, task: Task) -> None:
    from moe_lab.tasks.judges.lm_eval_hooks import is_judged

    if is_judged(task):
        raise TaskError(
            f"Task {name} has no right answers, only judges of what is answered: it is evaluated, and neither tuned on "
            "nor learned from."
        )


def _apply_settings(task: Any, config: Config) -> None:
    """What `lm_eval.simple_evaluate` does between loading and evaluating; a key given here always wins."""
    from lm_eval.filters import build_filter_ensemble

    from moe_lab.tasks.judges.lm_eval_hooks import is_judged, keep_metrics
    from moe_lab.tasks.judges.registry import judge_class

    if config.gen_kwargs and task.get_config("output_type") == "generate_until":
        own = task.get_config("generation_kwargs") or {}
        task.set_config(key="generation_kwargs", value=generation_settings(own, config.gen_kwargs))
    judged = is_judged(task)
    if judged and not config.predict_only:
        keep_metrics(task, [metric for name in judge_names(config) for metric in judge_class(name).metrics])
    if config.predict_only:
        task.override_metric(metric_name="bypass")
        if getattr(task, "UNSAFE_CODE", False) or judged:
            # its own one executes, or asks judges
            task._filters = [build_filter_ensemble("none", [("take_first", None)])]
    if config.num_fewshot is not None:
        task.set_config(key="num_fewshot", value=config.num_fewshot)
    elif task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    _check_fewshot_pool(task)
    task.set_fewshot_seed(seed=config.fewshot_seed)


def generation_settings(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A task's generation settings with those of `gen_kwargs` over them.

    lm-eval knows several spellings of the number of new tokens: one that is given replaces all of them. A sampling
    setting that is given turns sampling on, temperature=0 turns it off, unless do_sample is given, too.
    """
    spellings = MAX_NEW_TOKENS if any(key in given for key in MAX_NEW_TOKENS) else ()
    settings = {key: value for key, value in own.items() if key not in spellings} | given
    if "do_sample" not in given and any(key in given for key in SAMPLING):
        settings["do_sample"] = given.get("temperature") != 0
    if settings.get("do_sample") and settings.get("temperature") == 0:
        if "temperature" in given:
            raise ConfigError("gen_kwargs: temperature=0 is greedy decoding: leave do_sample=true out.")
        del settings["temperature"]  # the task's own, for greedy decoding
    return settings


def _check_fewshot_pool(task: Any) -> None:
    wanted = task.get_config("num_fewshot")
    if not wanted or not hasattr(task, "sampler"):
        return
    same_split = task.fewshot_cfg.split is not None and task.fewshot_cfg.split == task.config.test_split
    available = len(task.sampler.df) - (1 if same_split else 0)
    if wanted > available:
        raise TaskError(
            f"num_fewshot={wanted} is more than the {available} examples that {task.task_name} has."
        )


def seed_as_lm_eval() -> None:
    """The global seeds that `lm_eval.simple_evaluate` sets: some tasks shuffle documents or choices with them."""
    import random

    import numpy

    random.seed(0)
    numpy.random.seed(1234)


def _quiet_lm_eval() -> None:
    """lm-eval tells every default it takes; only its errors are the user's business."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
