"""mode=doctor: reports what a command lacks, the installation, and without a task what documented tasks lack."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from moe_lab.cli.doctor.inputs import code_execution, command_needs, task_state
from moe_lab.config.catalog import option_files
from moe_lab.config.compose import Cell, compose_cell
from moe_lab.config.paths import resource_folder
from moe_lab.config.schema import Config
from moe_lab.config.version import __version__
from moe_lab.models.hub.offline import go_offline
from moe_lab.runs.config import to_config
from moe_lab.runs.experiments.cells import experiment_configs

PACKAGES = ("torch", "transformers", "lm_eval", "datasets", "hydra-core", "omegaconf", "accelerate", "numpy")
NAMES_TASKS = ("task=", "task.", "experiment=")
OFFLINE_FLAGS = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME")


def print_report(configs: Sequence[Config]) -> int:
    """Print the report on the configurations of a grid. Returns the exit code."""
    return _print(configs[0], configs)


def report_experiments(config: Config, cell: Cell) -> int:
    """Print the report on the experiments in `config.experiment`. Returns the exit code."""
    return _print(config, experiment_configs(config, cell))


def _print(config: Config, configs: Sequence[Config]) -> int:
    for section in diagnose(config, configs):
        print(section, flush=True)
    return 0


def diagnose(config: Config, configs: Sequence[Config]) -> Iterator[str]:
    """The sections of the report on a command that runs `configs`. Loads no weights, fetches and writes nothing.

    A command that names neither a task nor an experiment gets a section on all documented tasks."""
    flags = _flags(config)
    go_offline()
    yield _section(
        "This command, without fetching anything", command_needs(configs) or ["nothing: it has no runs"]
    )
    yield _section("Output folder", [_output(Path(config.output_dir))])
    yield _section("Devices", _devices())
    yield _section("Versions", [f"moe_lab {__version__}, Python {platform.python_version()}", *_versions()])
    yield _section("Caches and offline", [*_caches(), *flags])
    if not any(override.lstrip("+").startswith(NAMES_TASKS) for override in config.overrides):
        yield _section("Executing programs that a model wrote", [code_execution()])
        yield _section("Documented tasks, without fetching anything", _tasks(config))


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _versions() -> list[str]:
    lines = []
    for package in PACKAGES:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} MISSING: pip install moe-lab brings it")
    return lines


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
    kept = sorted(folder.name for folder in cache.glob("*--*")) if cache.is_dir() else []
    lines = [f"hub cache: {cache}" + ("" if cache.is_dir() else " (not there yet)")]
    return lines + [
        f"  {name.replace('--', '/').partition('/')[2]} ({name.partition('--')[0]})" for name in kept
    ]


def _flags(config: Config) -> list[str]:
    lines = [f"{flag}={os.environ.get(flag, '(not set)')}" for flag in OFFLINE_FLAGS]
    return [*lines, f"offline={str(config.offline).lower()} data_dir={config.data_dir or '(the hub)'}"]


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
