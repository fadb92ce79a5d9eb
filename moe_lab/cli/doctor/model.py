"""The files and the memory that a model needs, and whether they are available. Fetches and loads nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, ModelError, MoeLabError
from moe_lab.methods import get_method
from moe_lab.models.memory import size_text, weight_memory

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from moe_lab.models.facts import ModelFacts

    FreeMemory = Callable[[torch.device], int]


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
    """The weight files on disk, and the size of the missing ones beside the free space."""
    from moe_lab.models.hub.headers import is_whole
    from moe_lab.models.weight_files import known_weights

    try:
        names = known_weights(folder)
    except ModelError as error:
        return [f"  weights: DAMAGED {one_line(error)}"]
    if not names:
        return [f"  weights: MISSING, none are in {folder}; {remedy}"]
    tensors = [name for name in names if not name.endswith(".json")]
    absent = [name for name in tensors if not (folder / name).exists()]
    present = [name for name in tensors if name not in absent]
    damaged = [name for name in present if name.endswith(".safetensors") and not is_whole(folder / name)]
    if damaged:
        return [f"  weights: DAMAGED {_named(damaged)} in {folder}; {remedy}"]
    size = sum((folder / name).stat().st_size for name in present)
    if not absent:
        return [f"  weights: ready, {_files(tensors)}, {size_text(size)}"]
    total = _indexed_bytes(folder, names)
    return [
        f"  weights: MISSING {len(absent)} of {_files(tensors)}: {_named(absent)}; {remedy}",
        _disk(folder, None if total is None else total - size),
    ]


def _files(names: list[str]) -> str:
    return "1 file" if len(names) == 1 else f"{len(names)} files"


def _named(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _disk(folder: Path, needed: int | None) -> str:
    from moe_lab.models.hub.download import free_bytes

    free = free_bytes(folder)
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
        " NOT ENOUGH: less is taken where experts are frozen in all phases (method.schedule=experts "
        "method.compare_with_full=false), and FSDP splits it over several GPUs: docs/finetuning.md"
    )
    return (
        f"weights, gradients and optimizer take {size_text(size)} in float32 at most, "
        f"{size_text(free)} are free on {device}{advice if size > free else ''}"
    )
