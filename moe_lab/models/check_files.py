"""Checks of a model's small files before a library reads them, which would fail at what they hold with any error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from moe_lab.errors import ModelError

MAPPINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
REMEDY = "Save or copy the model again."


def check_mappings(folder: Path, what: str) -> None:
    """Raise ModelError for a JSON file that is no mapping, of `what`: "The model owner/name", say."""
    for file in (folder / name for name in MAPPINGS):
        if not file.exists():
            continue
        try:
            content = json.loads(file.read_bytes()) if file.is_file() else None
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(
                f"{what} could not be read: {file.name} is damaged: {first_line(error)}. {REMEDY}"
            ) from error
        if not isinstance(content, dict):
            raise ModelError(f"{what} could not be read: {file.name} is damaged: it is no mapping. {REMEDY}")


def check_generation_file(folder: Path) -> None:
    """Raise ModelError for generation settings that transformers refuses."""
    from transformers import GenerationConfig

    file = folder / "generation_config.json"
    if not file.is_file():
        return
    try:
        guidance = GenerationConfig.from_pretrained(folder, local_files_only=True).guidance_scale
        if guidance not in (None, 1):
            raise ValueError(f"guidance_scale={guidance} needs a second pass without the prompt")
    except Exception as error:
        raise ModelError(f"{file} cannot be used: {first_line(error)}. Correct it, or delete it.") from error


def check_generation(model: Any, source: str) -> None:
    """Raise ModelError if the model's own generation settings cannot choose a token."""
    try:
        config, _ = model._prepare_generation_config(None)
        model._prepare_special_tokens(config, device=model.device)
        processors = model._get_logits_processor(config, input_ids_seq_length=1, device=str(model.device))
        ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        processors(ids, torch.zeros(1, model.config.get_text_config().vocab_size, device=model.device))
    except Exception as error:
        raise ModelError(
            f"The generation settings of {source} (generation_config.json) cannot be used: {first_line(error)}.\n"
            "Correct that file, or delete it."
        ) from error


def check_vocabulary(tokenizer: Any, model: Any, source: str) -> None:
    """Raise ModelError for a tokenizer with ids that the model has no embedding for; added tokens may be unused."""
    rows = model.get_input_embeddings().weight.shape[0]
    added = tokenizer.get_added_vocab()
    most = max((index for token, index in tokenizer.get_vocab().items() if token not in added), default=0)
    if most >= rows:
        raise ModelError(
            f"The tokenizer of {source} has ids up to {most:,}, and the model has embeddings of {rows:,} tokens: they "
            "do not belong together. model.tokenizer names another folder or hub id."
        )


def first_line(error: BaseException) -> str:
    """What an error says, at most 300 characters of its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(' "')]
    return (lines[0][:300] if lines else type(error).__name__).rstrip(".")
