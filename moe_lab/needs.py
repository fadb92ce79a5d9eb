"""What a command needs and whether it is here (mode=doctor): files, disk, memory. Fetches and loads nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config import Config
from moe_lab.errors import MoeLabError
from moe_lab.plan import task_name

if TYPE_CHECKING:
    import torch

FETCH = "mode=prefetch fetches it"


def command_needs(configs: Sequence[Config]) -> list[str]:
    """Lines for every model and task of a grid; to be called offline."""
    models = {repr((config.model, config.dtype, config.device)): config for config in configs}
    tasks = {repr((config.task, config.data_dir)): config for config in configs}
    lines = [line for config in models.values() for line in _model(config)]
    return lines + [f"task {task_name(config)}: {task_state(config)}" for config in tasks.values()]


def task_state(config: Config) -> str:
    """Whether a task's documents are at hand, and how many there are."""
    from moe_lab.tasks import load_tasks

    try:
        tasks = load_tasks(config)["tasks"]
    except MoeLabError as error:
        return "MISSING " + _one_line(error)
    return f"ready, {sum(len(task.task_docs) for task in tasks.values()):,} documents"


def _model(config: Config) -> list[str]:
    from moe_lab.models.facts import model_facts, resolve_device
    from moe_lab.models.hub import model_folder, model_repository, model_source

    model = config.model
    title = f"model {model.name}: {model_source(model)}"
    try:
        repository = model_repository(model, offline=True)
        folder = model_folder(model, offline=True)
        facts = model_facts(model, dtype=config.dtype, device=config.device, offline=True)
    except MoeLabError as error:
        return [f"{title}: MISSING {_one_line(error)}"]
    commit = "" if repository is None else f", {repository.revision} is commit {repository.commit}"
    return [
        f"{title}{commit}, {facts.family}, {facts.moe_layers} MoE layers",
        f"  tokenizer: {_tokenizer_state(config)}",
        *_weights(folder, facts.dtype, resolve_device(config.device), config),
    ]


def _tokenizer_state(config: Config) -> str:
    from moe_lab.models.tokenizer import load_tokenizer

    try:
        return f"ready, {len(load_tokenizer(config.model, offline=True)):,} tokens"
    except MoeLabError as error:
        return "MISSING " + _one_line(error)


def _weights(folder: Path, dtype: str, device: torch.device, config: Config) -> list[str]:
    """Which weight files are here, what is still to fetch against the free disk, and the memory that they take."""
    from moe_lab.hub.headers import is_whole
    from moe_lab.models.hub import known_weights

    names = known_weights(folder)
    if not names:
        return [f"  weights: MISSING, none are in {folder}; {FETCH}"]
    tensors = [name for name in names if not name.endswith(".json")]
    absent = [name for name in tensors if not (folder / name).exists()]
    torn = [
        name
        for name in tensors
        if name not in absent and name.endswith(".safetensors") and not is_whole(folder / name)
    ]
    there = sum((folder / name).stat().st_size for name in tensors if name not in absent)
    if torn:
        return [f"  weights: DAMAGED {_named(torn)} in {folder}; {FETCH} again"]
    total = _indexed_bytes(folder, names)
    if not absent:
        return [
            f"  weights: ready, {_files(tensors)}, {size_text(there)}",
            _memory(folder, names, dtype, device, config),
        ]
    return [
        f"  weights: MISSING {len(absent)} of {_files(tensors)}: {_named(absent)}; {FETCH}",
        _disk(folder, None if total is None else total - there),
        _memory(folder, names, dtype, device, config),
    ]


def _files(names: list[str]) -> str:
    return "1 file" if len(names) == 1 else f"{len(names)} files"


def _named(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _disk(folder: Path, wanted: int | None) -> str:
    from moe_lab.hub.download import free_bytes

    free = free_bytes(folder)
    if wanted is None:
        return f"  disk: {size_text(free)} free at {folder}"
    enough = "" if wanted <= free else " NOT ENOUGH: HF_HOME=<folder> puts the cache elsewhere"
    return f"  disk: about {size_text(wanted)} to fetch, {size_text(free)} free at {folder}{enough}"


def _memory(folder: Path, names: list[str], dtype: str, device: torch.device, config: Config) -> str:
    wanted = weight_memory(folder, names, dtype)
    if wanted is None:
        return "  memory: not known before the weights are here"
    free = _free_memory(device)
    short = wanted > free and not (config.model.device_map or config.model.tp_plan)
    advice = " NOT ENOUGH: model.device_map=auto spreads them, dtype=bfloat16 halves float32" if short else ""
    return f"  memory: weights take {size_text(wanted)} in {dtype}, {size_text(free)} are free on {device}{advice}"


def weight_memory(folder: Path, names: list[str], dtype: str) -> int | None:
    """Bytes of the weights in a dtype: by the files' headers, or by the index where some are absent; None: unknown."""
    import torch

    from moe_lab.hub.headers import loaded_bytes

    item = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    files = [folder / name for name in names if name.endswith(".safetensors")]
    if files and all(file.exists() for file in files):
        return sum(loaded_bytes(file, item) for file in files)
    total, stored = _indexed_bytes(folder, names), _stored_item_bytes(folder)
    return None if total is None or stored is None else total * item // stored


def _indexed_bytes(folder: Path, names: list[str]) -> int | None:
    """Bytes of all tensors by the index; None without one."""
    if not names[0].endswith(".index.json"):
        return None
    index = json.loads((folder / names[0]).read_text(encoding="utf-8"))
    return index.get("metadata", {}).get("total_size")


def _stored_item_bytes(folder: Path) -> int | None:
    """Bytes of a number in the checkpoint, as its configuration says."""
    import torch

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stored = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")), None)
    return None if stored is None else torch.empty(0, dtype=stored).element_size()


def _free_memory(device: torch.device) -> int:
    import psutil
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def size_text(size: int) -> str:
    """Bytes as people write them."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
