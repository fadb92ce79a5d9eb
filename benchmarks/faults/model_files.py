"""Changes to the files of a model folder, each a function whose last argument is the folder."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "the code of the model ran"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
TOKENIZER_CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"


class RunsCode:
    """An object whose pickle runs a command where it is loaded without care."""

    def __reduce__(self) -> tuple:
        return os.system, (f"touch '{MARK}'",)


def write(file: str, content: bytes, folder: Path) -> None:
    remove(file, folder)
    (folder / file).write_bytes(content)


def remove(file: str, folder: Path) -> None:
    (folder / file).unlink(missing_ok=True)


def make_folder(file: str, folder: Path) -> None:
    remove(file, folder)
    (folder / file).mkdir()


def make_fifo(file: str, folder: Path) -> None:
    remove(file, folder)
    os.mkfifo(folder / file)


def link_to(file: str, target: str, folder: Path) -> None:
    remove(file, folder)
    (folder / file).symlink_to(target)


def change_json(file: str, change: Callable[[dict[str, Any]], Any], folder: Path) -> None:
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))


def set_values(file: str, values: dict[str, Any], folder: Path) -> None:
    """Set values; `experts` is the number of experts, whose key each family has its own of."""

    def change(content: dict[str, Any]) -> None:
        for key, value in values.items():
            names = [name for name in ("num_local_experts", "num_experts") if name in content]
            content[names[0] if key == "experts" else key] = value

    change_json(file, change, folder)


def set_template(value: Any, folder: Path) -> None:
    remove(TEMPLATE, folder)
    set_values(TOKENIZER_CONFIG, {"chat_template": value}, folder)


def change_tensors(change: Callable[[dict[str, Any]], Any], folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def change_bytes(change: Callable[[bytes], bytes], folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))


def make_index(content: Any, folder: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / "other.safetensors")
    write(INDEX, json.dumps(content).encode(), folder)
    remove(WEIGHTS, folder)


def make_pickle(folder: Path) -> None:
    write("pytorch_model.bin", pickle.dumps(RunsCode()), folder)
    remove(WEIGHTS, folder)


def move_shards_below(folder: Path) -> None:
    from safetensors.torch import load_file

    (folder / "parts").mkdir()
    names = dict.fromkeys(load_file(folder / WEIGHTS), f"parts/{WEIGHTS}")
    (folder / WEIGHTS).rename(folder / "parts" / WEIGHTS)
    write(INDEX, json.dumps({"metadata": {}, "weight_map": names}).encode(), folder)


def link_weights(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "blob")
    (folder / WEIGHTS).symlink_to(folder.parent / "blob")
