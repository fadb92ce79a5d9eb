"""What a command needs and whether it is here (mode=doctor): models, methods, tasks, judges. Nothing is fetched."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moe_lab.cli.doctor.model import device_of, facts_of, model_needs, one_line, training_text
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, ModelError, MoeLabError
from moe_lab.methods import get_method
from moe_lab.methods.training_method import TrainingMethod
from moe_lab.models.memory import free_memory
from moe_lab.runs.plan import task_name

if TYPE_CHECKING:
    from moe_lab.cli.doctor.model import FreeMemory
    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts


def command_needs(configs: Sequence[Config]) -> list[str]:
    """Lines for every model, method and task of a grid; to be called offline.

    Raises ConfigError for a request that is wrong whatever is here.
    """
    models = {repr((config.model, config.dtype, config.device)): config for config in configs}
    tasks = {repr((config.task, config.data_dir)): config for config in configs}
    free = functools.cache(free_memory)  # of one moment, so that equal lines are equal
    blocks = dict.fromkeys(tuple(model_needs(config, free)) for config in models.values())
    methods = dict.fromkeys(line for config in configs for line in _method(config, free))
    states = [f"task {task_name(config)}: {task_state(config)}" for config in tasks.values()]
    judges = dict.fromkeys(line for config in configs for line in _judges(config))
    programs = dict.fromkeys(line for config in tasks.values() for line in _programs(config))
    return [line for block in blocks for line in block] + [*methods, *states, *judges, *programs]


def task_state(config: Config) -> str:
    """Whether a task's documents are at hand, and how many there are."""
    from moe_lab.tasks.loading import load_tasks

    try:
        tasks = load_tasks(config)["tasks"]
    except MoeLabError as error:
        return "MISSING " + one_line(error)
    return f"ready, {sum(len(task.task_docs) for task in tasks.values()):,} documents"


def code_execution() -> str:
    """Whether task.allow_code_execution=true could be granted here; harmless programs are executed to find out."""
    from moe_lab.tasks.sandbox.programs import require_cage

    try:
        return f"possible, in a cage of {require_cage().name}"
    except MoeLabError as error:
        return "NOT POSSIBLE " + one_line(error)


def _programs(config: Config) -> list[str]:
    """Whether the programs that a model writes can be executed, for a task that is scored so."""
    from moe_lab.tasks.loading import load_tasks

    try:
        tasks = load_tasks(config)["tasks"].values()
    except MoeLabError:
        return []
    executed = any(getattr(task, "UNSAFE_CODE", False) for task in tasks) and not config.predict_only
    return [f"executing programs that the model writes: {code_execution()}"] if executed else []


def _judges(config: Config) -> list[str]:
    """Whether the judges of the tasks can judge here; nothing where the tasks are missing, which their lines tell."""
    from moe_lab.tasks.judges.registry import judges_of
    from moe_lab.tasks.loading import load_tasks

    try:
        tasks = load_tasks(config)
    except MoeLabError:
        return []
    lines = []
    for judge in judges_of(config, tasks):
        try:
            told = ", ".join(
                f"{key} {value}" for key, value in judge.identity.items() if isinstance(value, str)
            )
            judge.check()
            lines.append(f"judge {judge.name}: ready, {told.partition(', ')[2]}")
        except MoeLabError as error:
            lines.append(f"judge {judge.name}: MISSING {one_line(error)}")
    return lines


def _method(config: Config, free: FreeMemory) -> list[str]:
    """Why the method cannot run on the model, or whether it finds what it reads beside the task's documents, and what
    memory its training needs.

    Nothing where it reads nothing else, or where the model's own lines tell.
    """
    from moe_lab.runs.checks import check_router

    try:
        facts = facts_of(config)
    except ModelError:
        return []
    method = get_method(config.method.name)(config.method)
    try:
        check_router(method, facts)
        method.check(facts)
    except ConfigError as error:
        return [f"method {config.method.name} on model {config.model.name}: CANNOT RUN {one_line(error)}"]
    beside = f"method {config.method.name}: what it reads beside {task_name(config)}"
    try:
        found = [f"{beside} is ready"] if method.data_identity(config, facts) else []
    except MoeLabError as error:
        return [f"{beside} is MISSING {one_line(error)}"]
    return found + _trainings(method, config, facts, free)


def _trainings(method: Method, config: Config, facts: ModelFacts, free_memory: FreeMemory) -> list[str]:
    """What memory the method's training takes, and those of what it is compared with, where they are not stored."""
    device, no_device = device_of(config)
    if no_device is not None:
        return []
    methods = {f"by {config.method.name}": method}
    if config.baseline and not config.predict_only:
        others = {name: get_method(other.name)(other) for name, (other, _) in method.comparisons().items()}
        methods |= {f"of {name} to compare with": other for name, other in others.items()}
    wanted = {
        name: each.training_memory(config, facts)
        for name, each in methods.items()
        if isinstance(each, TrainingMethod)
    }
    free = free_memory(device)
    return [
        f"training {name}, model {config.model.name}: {training_text(size, free, device)}"
        for name, size in wanted.items()
        if size is not None
    ]
