"""The models, methods, tasks and judges of a command, and whether they are available. Fetches nothing."""

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
    """Lines for every model, method, task and judge of a grid. Call it offline.

    Raises ConfigError for a request that no machine could run.
    """
    models = {
        repr((config.model, config.dtype, config.device, _reads_weights(config))): config
        for config in configs
    }
    tasks = {repr((config.task, config.data_dir)): config for config in configs}
    free = functools.cache(free_memory)  # measured once, so that equal lines are printed once
    blocks = dict.fromkeys(tuple(model_needs(config, free)) for config in models.values())
    methods = dict.fromkeys(line for config in configs for line in _method(config, free))
    states = [f"task {task_name(config)}: {task_state(config)}" for config in tasks.values()]
    judges = dict.fromkeys(line for config in configs for line in _judges(config))
    programs = dict.fromkeys(line for config in tasks.values() for line in _programs(config))
    return [line for block in blocks for line in block] + [*methods, *states, *judges, *programs]


def _reads_weights(config: Config) -> bool:
    return get_method(config.method.name).reads_weights


def task_state(config: Config) -> str:
    """The number of a task's documents, or why they are missing."""
    from moe_lab.tasks.loading import load_tasks

    try:
        tasks = load_tasks(config)["tasks"]
    except MoeLabError as error:
        return "MISSING " + one_line(error)
    return f"ready, {sum(len(task.task_docs) for task in tasks.values()):,} documents"


def code_execution() -> str:
    """Whether a sandbox works on this machine. Executes harmless programs in it."""
    from moe_lab.tasks.sandbox.programs import require_cage

    try:
        return f"possible, in a cage of {require_cage().name}"
    except MoeLabError as error:
        return "NOT POSSIBLE " + one_line(error)


def _programs(config: Config) -> list[str]:
    """Whether generated programs can be executed, for a task that is scored by them."""
    from moe_lab.tasks.loading import load_tasks

    try:
        tasks = load_tasks(config)["tasks"].values()
    except MoeLabError:
        return []
    executed = any(getattr(task, "UNSAFE_CODE", False) for task in tasks) and not config.predict_only
    return [f"executing programs that the model writes: {code_execution()}"] if executed else []


def _judges(config: Config) -> list[str]:
    """Whether the judges of the tasks can work; empty if the tasks are missing, which `task_state` reports."""
    from moe_lab.tasks.judges.registry import judges_of
    from moe_lab.tasks.loading import load_tasks

    try:
        tasks = load_tasks(config)
    except MoeLabError:
        return []
    lines = []
    for judge in judges_of(config, tasks):
        try:
            identity = ", ".join(
                f"{key} {value}" for key, value in judge.identity.items() if isinstance(value, str)
            )
            judge.check()
            lines.append(f"judge {judge.name}: ready, {identity.partition(', ')[2]}")
        except MoeLabError as error:
            lines.append(f"judge {judge.name}: MISSING {one_line(error)}")
    return lines


def _method(config: Config, free: FreeMemory) -> list[str]:
    """Why the method cannot run on the model, or whether its data is available, and the memory of its training.

    Empty for a method without data and training, and for a model that cannot be read, which `model_needs` reports.
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
        data = [f"{beside} is ready"] if method.data_identity(config, facts) else []
    except MoeLabError as error:
        return [f"{beside} is MISSING {one_line(error)}"]
    return data + _trainings(method, config, facts, free)


def _trainings(method: Method, config: Config, facts: ModelFacts, free_memory: FreeMemory) -> list[str]:
    """The memory of trainings that are not stored: of the method and of the methods that it is compared with."""
    device, no_device = device_of(config)
    if no_device is not None:
        return []
    methods = {f"by {config.method.name}": method}
    if config.baseline and not config.predict_only:
        others = {name: get_method(other.name)(other) for name, (other, _) in method.comparisons().items()}
        methods |= {f"of {name} to compare with": other for name, other in others.items()}
    sizes = {
        name: each.training_memory(config, facts)
        for name, each in methods.items()
        if isinstance(each, TrainingMethod)
    }
    free = free_memory(device)
    return [
        f"training {name}, model {config.model.name}: {training_text(size, free, device)}"
        for name, size in sizes.items()
        if size is not None
    ]
