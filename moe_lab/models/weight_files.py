"""The files that transformers loads weights from: one file, or an index and its shards."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from moe_lab.errors import ModelError
from moe_lab.models.hub.headers import index_of

if TYPE_CHECKING:
    from moe_lab.models.hub.repository import Repository

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files with weights in the order of transformers, which takes the first that exists."""


def weight_files(repository: Repository) -> list[str]:
    """The weight files of a repository: one file, or an index and its shards.

    Raises ModelError if there are none.
    """
    from moe_lab.models.hub.download import fetch

    first = next((name for name in WEIGHTS if repository.holds(name)), None)
    if first is None:
        if repository.files is None:
            return list(WEIGHTS[:1])  # offline: the hub may have another one
        raise ModelError(f"The repository {repository.id} holds no weights that transformers loads.")
    if not first.endswith(".index.json"):
        return [first]
    return _with_shards(fetch(repository, [first]), first)


def known_weights(folder: Path) -> list[str]:
    """The weight files of a folder, including missing shards that its index names; none without weights or an index.

    Raises ModelError if the index is damaged, or if it names files outside of the folder.
    """
    first = next((name for name in WEIGHTS if (folder / name).exists()), None)
    return [] if first is None else _with_shards(folder, first)


def _with_shards(folder: Path, first: str) -> list[str]:
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
