"""mode=doctor: reports what a command needs and this machine lacks. Fetches nothing and loads no weights.

Each thing that is lacking is marked by a word in capitals (`LACKING`).
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config import __version__
from moe_lab.config.catalog import option_files, resource_folder
from moe_lab.config.compose import Cell, compose_cell
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, ModelError, MoeLabError
from moe_lab.methods import get_method
from moe_lab.methods.method import TrainingMethod
from moe_lab.models.hub import go_offline
from moe_lab.models.memory import free_memory, size_text, weight_memory
from moe_lab.runs.config import to_config
from moe_lab.runs.experiments.cells import experiment_configs
from moe_lab.runs.plan import task_name

if TYPE_CHECKING:
    import torch
    from lm_eval.tasks.manager import TaskDict
    from transformers import PreTrainedConfig

    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts

    FreeMemory = Callable[[torch.device], int]


# Models: files and memory


def model_needs(config: Config, free: FreeMemory) -> list[str]:
    """Lines on a model's files, tokenizer and memory. Call it offline."""
    from moe_lab.models.source import load_config, model_folder, model_repository, model_source

    model = config.model
    title = f"model {model.name}: {model_source(model)}"
    device, no_device = device_of(config)
    try:
        repository = model_repository(model, offline=True)
        folder = model_folder(model, offline=True)
    except ModelError as error:
        return [f"{title}: MISSING {one_line(error)}"]
    try:
        facts = facts_of(config)
        stored = load_config(model, offline=True)
    except ModelError as error:
        return [f"{title}: CANNOT RUN {one_line(error)}"]
    commit = "" if repository is None else f", {repository.revision} is commit {repository.commit}"
    remedy = "save or copy it again" if repository is None else "mode=prefetch fetches it"
    tokenizer = f"  tokenizer: {_tokenizer_state(config)}"
    if not get_method(config.method.name).reads_weights:
        return [f"{title}{commit}, of which the tokenizer is read", tokenizer]
    return [
        f"{title}{commit}, {facts.family}, {facts.moe_layers} MoE layers",
        tokenizer,
        *_weights(folder, remedy),
        _memory(stored, folder, device, config, free) if no_device is None else no_device,
    ]


def facts_of(config: Config) -> ModelFacts:
    """The model's facts, also if the requested device does not exist."""
    from moe_lab.models.facts import model_facts

    device, no_device = device_of(config)
    name = str(device) if no_device is None else "cpu"
    return model_facts(config.model, dtype=config.dtype, device=name, offline=True)


def device_of(config: Config) -> tuple[torch.device, str | None]:
    """The requested device, and a line if this machine lacks it."""
    import torch

    from moe_lab.models.facts import resolve_device

    try:
        return resolve_device(config.device), None
    except ConfigError as error:
        return torch.device(config.device), f"  device: CANNOT RUN {one_line(error)}"


def _tokenizer_state(config: Config) -> str:
    from moe_lab.models.tokenizer import load_tokenizer

    try:
        return f"ready, {len(load_tokenizer(config.model, offline=True)):,} tokens"
    except MoeLabError as error:
        return "MISSING " + one_line(error)


def _weights(folder: Path, remedy: str) -> list[str]:
    """The weight files on disk, the size of the missing ones, and the free space."""
    from moe_lab.models.files import is_whole, known_weights

    try:
        names = known_weights(folder)
    except ModelError as error:
        return [f"  weights: DAMAGED {one_line(error)}"]
    if not names:
        return [f"  weights: MISSING, none are in {folder}; {remedy}"]
    tensors = [name for name in names if not name.endswith(".json")]
    files = "1 file" if len(tensors) == 1 else f"{len(tensors)} files"
    absent = [name for name in tensors if not (folder / name).exists()]
    present = [name for name in tensors if name not in absent]
    damaged = [name for name in present if name.endswith(".safetensors") and not is_whole(folder / name)]
    if damaged:
        return [f"  weights: DAMAGED {_named(damaged)} in {folder}; {remedy}"]
    size = sum((folder / name).stat().st_size for name in present)
    if not absent:
        return [f"  weights: ready, {files}, {size_text(size)}"]
    total = _indexed_bytes(folder, names)
    return [
        f"  weights: MISSING {len(absent)} of {files}: {_named(absent)}; {remedy}",
        _disk(folder, None if total is None else total - size),
    ]


def _named(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _disk(folder: Path, needed: int | None) -> str:

    free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
    if needed is None:
        return f"  disk: {size_text(free)} free at {folder}"
    advice = "" if needed <= free else " NOT ENOUGH: HF_HOME=<folder> puts the cache elsewhere"
    return f"  disk: about {size_text(needed)} to fetch, {size_text(free)} free at {folder}{advice}"


def _memory(
    stored: PreTrainedConfig, folder: Path, device: torch.device, config: Config, free_memory: FreeMemory
) -> str:
    from moe_lab.models.facts import resolve_dtype

    dtype = resolve_dtype(config.dtype, device, stored)
    needed = weight_memory(stored, folder, dtype)
    if needed is None:
        return "  memory: not known before the weights are here"
    free = free_memory(device)
    short = needed > free and not (config.model.device_map or config.model.tp_plan)
    halves = ", dtype=bfloat16 halves them" if dtype == "float32" else ""
    advice = f" NOT ENOUGH: model.device_map=auto spreads them{halves}" if short else ""
    return f"  memory: weights take {size_text(needed)} in {dtype}, {size_text(free)} are free on {device}{advice}"


def _indexed_bytes(folder: Path, names: list[str]) -> int | None:
    """Bytes of all tensors by the index; None if the index lacks it."""
    if not names[0].endswith(".index.json"):
        return None
    index = json.loads((folder / names[0]).read_text(encoding="utf-8"))
    return (index.get("metadata") or {}).get("total_size")


def one_line(error: Exception) -> str:
    """An error's message in one line."""
    return " ".join(str(error).split())


def training_text(size: int, free: int, device: torch.device) -> str:
    """The memory of a training (`TrainingMethod.training_memory`), with advice if it does not fit."""
    advice = (
        " NOT ENOUGH: less is taken with method.activation_checkpointing=true, method.optimizer=adamw_torch_8bit, "
        "LoRA (method.lora.r=8) or frozen experts (method.schedule=experts method.compare_with_full=false), and FSDP "
        "splits it over several GPUs: docs/finetuning.md"
    )
    return (
        f"takes {size_text(size)} at most, "
        f"{size_text(free)} are free on {device}{advice if size > free else ''}"
    )


# Methods, tasks and judges


def command_needs(configs: Sequence[Config]) -> list[str]:
    """Lines for every model, method, task and judge of a grid. Call it offline.

    Raises ConfigError for a request that no machine could run.
    """
    models = {
        repr(
            (config.model, config.dtype, config.device, get_method(config.method.name).reads_weights)
        ): config
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


def task_state(config: Config) -> str:
    """The number of a task's documents, or why they are missing."""
    tasks = _tasks_or_error(config)
    if isinstance(tasks, MoeLabError):
        return "MISSING " + one_line(tasks)
    return f"ready, {sum(len(task.task_docs) for task in tasks['tasks'].values()):,} documents"


def _tasks_or_error(config: Config) -> TaskDict | MoeLabError:
    from moe_lab.tasks.loading import load_tasks

    try:
        return load_tasks(config)
    except MoeLabError as error:
        return error


def code_execution() -> str:
    """Whether a sandbox works on this machine. Executes harmless programs in it."""
    from moe_lab.tasks.sandbox.programs import why_no_bubblewrap

    problem = why_no_bubblewrap()
    return "possible, in bubblewrap" if problem is None else f"NOT POSSIBLE {problem}"


def _programs(config: Config) -> list[str]:
    """Whether generated programs can be executed, for a task that is scored by them."""
    tasks = _tasks_or_error(config)
    if isinstance(tasks, MoeLabError) or config.predict_only:
        return []
    executed = any(getattr(task, "UNSAFE_CODE", False) for task in tasks["tasks"].values())
    return [f"executing programs that the model writes: {code_execution()}"] if executed else []


def _judges(config: Config) -> list[str]:
    """Whether the judges of the tasks can work; empty if the tasks are missing, which `task_state` reports."""
    from moe_lab.tasks.judges import judges_of

    tasks = _tasks_or_error(config)
    if isinstance(tasks, MoeLabError):
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
    data_of = f"method {config.method.name}: its data other than {task_name(config)}"
    try:
        data = [f"{data_of} is ready"] if method.data_identity(config, facts) else []
    except MoeLabError as error:
        return [f"{data_of} is MISSING {one_line(error)}"]
    return data + _trainings(method, config, facts, free)


def _launcher(config: Config) -> list[str]:
    """Whether the launcher's package is installed; empty without a launcher."""
    from moe_lab.cli.launchers import check_package

    name = config.launcher.name
    try:
        check_package(name)
    except ConfigError as error:
        return [f"launcher {name}: MISSING {one_line(error)}"]
    return [] if name == "none" else [f"launcher {name}: ready"]


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


# The report

PACKAGES = ("torch", "transformers", "lm_eval", "datasets", "hydra-core", "omegaconf", "accelerate", "numpy")
NAMES_TASKS = ("task=", "task.", "experiment=")
OF_COMMAND, OF_OUTPUT = "This command, without fetching anything", "Output folder"
"""Titles of the sections that determine the exit code."""
LACKING = re.compile(r"(?<!\S)(MISSING|NOT ENOUGH|CANNOT RUN|DAMAGED|NOT POSSIBLE|NOT WRITABLE)\b")
OFFLINE_FLAGS = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME")


def print_report(configs: Sequence[Config]) -> int:
    """Print the report on the configurations of a grid. Returns the exit code."""
    return _print(diagnose(configs[0], configs))


def report_experiments(config: Config, cell: Cell) -> int:
    """Print the report on the experiments in `config.experiment`. Returns the exit code."""
    return _print(diagnose(config, experiment_configs(config, cell)))


def _print(sections: Iterable[str]) -> int:
    """Print the sections. Returns exit code 1 if the command lacks something, else 0."""
    lacks = False
    for section in sections:
        print(section, flush=True)
        lacks |= section.startswith((OF_COMMAND, OF_OUTPUT)) and LACKING.search(section) is not None
    return int(lacks)


def diagnose(config: Config, configs: Sequence[Config]) -> Iterator[str]:
    """The sections of the report. Without a task or an experiment in the command, one is on all documented tasks."""
    flags = _flags(config)
    go_offline()
    needs = [*command_needs(configs), *_launcher(config)]
    yield _section(OF_COMMAND, needs or ["nothing: it has no runs"])
    yield _section(OF_OUTPUT, [_output(Path(config.output_dir))])
    yield _section("Devices", _devices())
    yield _section(
        "Versions",
        [f"moe_lab {__version__}, Python {platform.python_version()}", *map(_version_of, PACKAGES)],
    )
    yield _section("Caches and offline", [*_caches(), *flags])
    if not any(override.lstrip("+").startswith(NAMES_TASKS) for override in config.overrides):
        yield _section("Executing programs that a model wrote", [code_execution()])
        yield _section("Documented tasks, without fetching anything", _tasks(config))


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _version_of(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} MISSING. In the checkout of moe_lab: pip install -e ."


def _devices() -> list[str]:
    import torch

    lines = [f"cpu: {os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        lines.append(f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    return lines


def _caches() -> list[str]:
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    kept = sorted(cache.glob("*--*")) if cache.is_dir() else []
    return [f"hub cache: {cache}" + ("" if cache.is_dir() else " (not there yet)"), *map(_cached, kept)]


def _cached(folder: Path) -> str:
    """A repository in the hub cache. Incomplete: it has no whole file, or one that was not fetched to its end."""
    kind, _, name = folder.name.partition("--")
    partial = any(folder.glob("blobs/*.incomplete")) or not any(folder.glob("snapshots/*/*"))
    return f"  {name.replace('--', '/')} ({kind}{', incomplete' if partial else ''})"


def _flags(config: Config) -> list[str]:
    flags = (f"{flag}={os.environ.get(flag, '(not set)')}" for flag in OFFLINE_FLAGS)
    return [*flags, f"offline={str(config.offline).lower()} data_dir={config.data_dir or '(the hub)'}"]


def _output(folder: Path) -> str:
    existing = next(parent for parent in [folder.absolute(), *folder.absolute().parents] if parent.exists())
    writable = "writable" if os.access(existing, os.W_OK) else "NOT WRITABLE: choose another with output_dir="
    return f"{folder.absolute()}: {writable}"


def _tasks(config: Config) -> list[str]:
    names = [name for name in option_files("task", [resource_folder("conf")]) if name != "lm_eval"]
    tasks = {name: to_config(compose_cell([f"task={name}"], [])).task for name in names}
    return [
        f"{name:<27} {task_state(replace(config, task=task, offline=True))}" for name, task in tasks.items()
    ]
