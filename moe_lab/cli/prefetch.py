"""mode=prefetch: fetches all files that the same command needs offline. Loads no weights into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from moe_lab.config.compose import Cell
from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ConfigError, MoeLabError, exit_code, print_error
from moe_lab.methods import get_method
from moe_lab.models.memory import size_text
from moe_lab.reports.terminal.layout import print_table
from moe_lab.runs.experiments.cells import experiment_configs
from moe_lab.runs.plan import task_name
from moe_lab.tasks.judges import judge_names


@dataclass(frozen=True)
class Item:
    """A model, data set or judge that a command needs, and its place on disk."""

    what: str
    size: int
    """Bytes on disk."""
    where: str
    state: str


def prefetch(configs: Sequence[Config]) -> int:
    """Fetch the files that the configurations need and print a table of them. Returns the exit code.

    A failure does not stop the other downloads; the same command continues. Raises ConfigError in offline mode.
    """
    from moe_lab.models.hub import is_offline

    if is_offline() or any(config.offline for config in configs):
        raise ConfigError(
            "mode=prefetch needs the network, which offline=true or HF_HUB_OFFLINE=1 forbids. Leave that out."
        )
    steps: dict[str, Callable[[], Item | None]] = {}
    for config in configs:
        model, task = config.model, config.task
        weights = get_method(config.method.name).reads_weights
        source = f"{model.path} {model.revision} {model.tokenizer} {model.peft} {weights}"
        steps.setdefault(source, partial(_model, model, weights))
        steps.setdefault(repr((task, config.data_dir)), partial(_task, config))
        steps.setdefault(repr((config.method, task, config.data_dir)), partial(_method, config))
        for name in judge_names(config):
            steps.setdefault(repr((name, task, config.data_dir)), partial(_judge, name, config))
    items, errors = [], []
    for step in steps.values():
        try:
            items.append(step())
        except MoeLabError as error:
            errors.append(error)
    _print(item for item in items if item is not None)
    for failed in errors:
        print_error(failed)
    return exit_code(errors[0]) if errors else 0


def prefetch_experiments(config: Config, cell: Cell) -> int:
    """Fetch the files that the experiments in `config.experiment` need. Returns the exit code."""
    return prefetch(experiment_configs(config, cell))


def _model(model: ModelConfig, weights: bool) -> Item:
    from moe_lab.models.hub import snapshot
    from moe_lab.models.source import (
        adapter_folder,
        load_config,
        model_commit,
        model_folder,
        tokenizer_folder,
    )
    from moe_lab.models.tokenizer import load_tokenizer

    commit = model_commit(model, offline=False)
    cached = None if commit is None else snapshot(str(model.path), "model", commit)
    before = 0 if cached is None else _size(cached)
    load_config(model, offline=False)
    load_tokenizer(model, offline=False)
    folders = {
        model_folder(model, offline=False, weights=weights),
        tokenizer_folder(model, offline=False),
        *([adapter] if (adapter := adapter_folder(model, offline=False)) is not None else []),
    }
    size = sum(_size(folder) for folder in folders)
    where = ", ".join(sorted(map(str, folders)))
    if cached is None:
        return Item(f"model {model.name}", size, where, "local folder")
    return Item(f"model {model.name}: {model.path}", size, where, _state(_size(cached) - before))


def _task(config: Config) -> Item:
    """Fetch the data sets of a task with all splits, which `datasets` prepares together."""
    from datasets.config import HF_DATASETS_CACHE

    from moe_lab.tasks.loading import load_tasks

    cache = Path(HF_DATASETS_CACHE)
    before = _sizes(cache)
    tasks = load_tasks(config)["tasks"].values()
    new = {
        Path(folder) for folder in _sizes(cache) - before
    }  # some tasks keep copies in other columns in memory
    folders = {folder for task in tasks for folder in _folders(task)} | new
    name = f"task {task_name(config)}"
    if not folders:
        return Item(name, 0, ", ".join(dict.fromkeys(task.data_source for task in tasks)), "nothing to fetch")
    sizes = {folder: _size(folder) for folder in folders}
    fetched = sum(size for folder, size in sizes.items() if str(folder) not in before)
    where = str(min(folders)) if len(folders) == 1 else f"{cache} ({len(folders)} data sets)"
    return Item(name, sum(sizes.values()), where, _state(fetched))


def _method(config: Config) -> Item | None:
    """Fetch data of a method other than the task's documents, such as C3PO's references; None if there is none."""
    from datasets.config import HF_DATASETS_CACHE

    from moe_lab.methods.method import Method
    from moe_lab.models.facts import model_facts

    method = get_method(config.method.name)(config.method)
    if type(method).data_identity is Method.data_identity:
        return None
    cache = Path(HF_DATASETS_CACHE)
    before = _sizes(cache)
    facts = model_facts(config.model, dtype=config.dtype, device=config.device, offline=False)
    if not method.data_identity(config, facts):
        return None
    new = sum(_size(Path(folder)) for folder in _sizes(cache) - before)
    name = f"method {config.method.name}: its data other than {task_name(config)}"
    return Item(name, new, config.data_dir or str(cache), _state(new))


def _judge(name: str, config: Config) -> Item | None:
    """Fetch the model of a judge; None for a judge without one, or without a judged task."""
    from moe_lab.models.hub import snapshot
    from moe_lab.models.source import model_commit
    from moe_lab.tasks.judges import judges_of
    from moe_lab.tasks.judges.local import LocalJudge
    from moe_lab.tasks.loading import load_tasks

    judges = {judge.name: judge for judge in judges_of(config, load_tasks(config))}
    judge = judges.get(name)
    if not isinstance(judge, LocalJudge):
        return None
    commit = model_commit(judge.model, offline=False)
    cached = None if commit is None else snapshot(str(judge.model.path), "model", commit)
    before = 0 if cached is None else _size(cached)
    folder = judge.folder()
    assert judge.tokenizer, "fetched"
    state = "local folder" if cached is None else _state(_size(cached) - before)
    return Item(f"judge {name}: {judge.source}", _size(folder), str(folder), state)


def _folders(task: Any) -> set[Path]:
    """The folders of a task's data set in the cache of `datasets`; empty for generated data."""
    splits = task.dataset.values() if isinstance(task.dataset, dict) else []
    return {Path(file["filename"]).parent for split in splits for file in split.cache_files}


def _sizes(cache: Path) -> set[str]:
    """The prepared data sets: <cache>/<name>/<configuration>/<version>/<hash>."""
    return {str(folder) for folder in cache.glob("*/*/*/*") if folder.is_dir()}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _state(fetched: int) -> str:
    return f"fetched {size_text(fetched)}" if fetched else "already there"


def _print(items: Iterable[Item]) -> None:
    table = Table("what", "size", title="Caches")
    table.add_column("where", overflow="fold")  # a path is there to be copied
    table.add_column("state")
    for item in items:
        table.add_row(item.what, size_text(item.size), item.where, item.state)
    print_table(table)
