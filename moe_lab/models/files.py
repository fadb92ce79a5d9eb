"""The files of a model's folder: checks before a library reads them, code that is never run, weights.

A library would fail at damaged content with any error, so these checks come first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from moe_lab.errors import ModelError, reading

ADAPTER = "adapter_config.json"
"""transformers loads such an adapter with a model that has one in its folder."""
ADAPTER_TENSORS = "adapter_model.safetensors"

NO_CODE: dict[str, Any] = {"trust_remote_code": False}
"""An option of every `from_pretrained`. Without it transformers asks on the terminal, and runs the code on a `y`."""


@contextmanager
def code_refused(source: str, file: Path) -> Iterator[None]:
    """Raise ModelError if transformers refuses to load `file` (config.json, tokenizer_config.json) for its code."""
    try:
        yield
    except ValueError as error:
        if "custom code" not in str(error):
            raise
        raise ModelError(
            f"{source} needs code of its own ({file.name} names {_named_code(file)}), which is never run. Use a model "
            "that transformers has built in (docs/models.md)."
        ) from error


def refuse_adapter(folder: Path, source: str) -> None:
    """Raise ModelError for an adapter in a model's folder: peft imports modules that its configuration names."""
    if (folder / ADAPTER).exists():
        raise ModelError(
            f"{source} has an adapter next to its weights ({ADAPTER}), which is not loaded: it may name code to run. "
            "Move it to a folder of its own and give model.peft=<folder>, or remove it."
        )


def _named_code(file: Path) -> str:
    """The classes of `auto_map` as a text."""
    classes = json.loads(file.read_text(encoding="utf-8")).get("auto_map", {})
    named = classes.values() if isinstance(classes, dict) else classes
    flat = [name for each in named for name in (each if isinstance(each, list) else [each])]
    return ", ".join(dict.fromkeys(str(name) for name in flat if name))


MAX_HEADER = 100_000_000
"""The format's limit of a header, in bytes."""


def read_header(file: Path) -> dict[str, Any]:
    """The tensors of a safetensors file by name: {"dtype", "shape", "data_offsets"}. Raises ValueError if it is cut."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(min(length, MAX_HEADER)))
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def is_whole(file: Path) -> bool:
    """Whether a safetensors file has the size of its header."""
    try:
        tensors = read_header(file)
    except ValueError:
        return False
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
    end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    return file.stat().st_size == 8 + length + end


def index_of(file: Path) -> dict[str, str] | None:
    """The file of each tensor by an index of shards; None if the index is damaged."""
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    places = index.get("weight_map") if isinstance(index, dict) else None
    named = isinstance(places, dict) and all(isinstance(name, str) for name in places.values())
    return places if named and places else None


MAPPINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
REMEDY = "Save or copy the model again."


def check_mappings(folder: Path, what: str) -> None:
    """Raise ModelError for a JSON file that is no mapping, of `what`: "The model owner/name", say."""
    for file in (folder / name for name in MAPPINGS):
        with reading(f"{what} could not be read: {file.name}", REMEDY, raises=ModelError, says="is damaged"):
            if file.exists() and not isinstance(json.loads(file.read_bytes()), dict):
                raise ValueError("it is no mapping")


def check_generation_file(folder: Path) -> None:
    """Raise ModelError for generation settings that transformers refuses."""
    from transformers import GenerationConfig

    file = folder / "generation_config.json"
    if not file.is_file():
        return
    with reading(file, "Correct it, or delete it.", raises=ModelError, says="cannot be used"):
        guidance = GenerationConfig.from_pretrained(folder, local_files_only=True).guidance_scale
        if guidance not in (None, 1):
            raise ValueError(f"guidance_scale={guidance} needs a second pass without the prompt")


WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files with weights in the order of transformers, which takes the first that exists."""


def known_weights(folder: Path) -> list[str]:
    """The weight files of a folder, including missing shards that its index names; none without weights or an index.

    Raises ModelError if the index is damaged, or if it names files outside of the folder.
    """
    first = next((name for name in WEIGHTS if (folder / name).exists()), None)
    return [] if first is None else with_shards(folder, first)


def with_shards(folder: Path, first: str) -> list[str]:
    """An index and the files that it names, all below its folder. Raises ModelError if they are not."""
    if not first.endswith(".index.json"):
        return [first]
    index = index_of(folder / first)
    if index is None:
        raise ModelError(
            f"{folder / first} is damaged: it does not say which file holds which weights.\n"
            "Save or copy the model again; in the hub's cache delete this file, and mode=prefetch fetches it again."
        )
    names = sorted(set(index.values()))
    if outside := [name for name in names if PurePosixPath(name).is_absolute() or ".." in Path(name).parts]:
        raise ModelError(
            f"{folder / first} names {outside[0]}, which is outside of its folder. Keep all weights of a model in its "
            "own folder."
        )
    return [first, *names]
