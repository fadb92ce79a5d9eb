"""Rows that `datasets.load_dataset` reads: `method.dataset.path=...`, under its own names.

    method.dataset.path=owner/name method.dataset.name=<configuration> method.dataset.split=train
    method.dataset.path=csv method.dataset.data_files=answers.csv method.dataset.sep=|

https://huggingface.co/docs/datasets/package_reference/loading_methods#datasets.load_dataset
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from glob import escape, glob
from pathlib import Path
from typing import Any, NamedTuple

from moe_lab.config.doors import URL_WITH_PASSWORD, check_name
from moe_lab.config.paths import user_path
from moe_lab.errors import ConfigError, TaskError, first_line
from moe_lab.models.hub import commit_of

PAGE = "https://huggingface.co/docs/datasets/package_reference/loading_methods"
REFUSED = {
    "cache_dir": "it is HF_DATASETS_CACHE",
    "download_config": "it is an object",
    "features": "it is an object, and rows have the types of their files",
    "keep_in_memory": "rows are read one after the other",
    "save_infos": "it writes into the data set",
    "storage_options": "it may hold a secret, which belongs in the environment",
    "token": "a secret belongs in the environment: HF_TOKEN",
    "trust_remote_code": "code of a data set is never run",
}
"""The arguments that are not taken, with the reason."""
BUILDERS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".tsv": "csv",
    ".txt": "text",
}
"""datasets' builder of a file, by its ending."""
COMPRESSED = (".bz2", ".gz", ".xz", ".zst")
"""Endings of compressed files, which datasets reads as they are."""


class PlacedRow(NamedTuple):
    """A row, and where it is, for messages."""

    row: Any
    place: str


def builder_of(path: Path) -> str | None:
    """datasets' builder of a file, by its ending without that of a compression; None if it has
    none."""
    if path.suffix in COMPRESSED:
        path = path.with_suffix("")
    return BUILDERS.get(path.suffix)


def rows_of_file(path: Path) -> Iterator[PlacedRow]:
    """The rows of a file that datasets reads. Raises TaskError."""
    options: dict[str, Any] = {"path": builder_of(path), "data_files": escape(str(path))}
    if ".tsv" in path.suffixes:
        options["sep"] = "\t"
    yield from library_rows(options, str(path))


def library_rows(arguments: Mapping[str, Any], name: str) -> Iterator[PlacedRow]:
    """The rows of `load_dataset(**arguments)`, by default of the train split, as they are read.

    Args:
        name: what the place of a row begins with.

    Raises TaskError if datasets raises anything, and for several splits.
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(**{"split": "train", "streaming": True, **arguments})
        if not isinstance(loaded, datasets.Dataset | datasets.IterableDataset):
            raise TypeError("it has several splits: give one, split=train")
        for number, row in enumerate(loaded, start=1):
            yield PlacedRow(row, f"{name}, row {number}")
    except Exception as error:  # each builder has others, and an empty file none with a text
        reason = first_line(error) or "it has no rows"
        raise TaskError(f"{name} could not be read by datasets: {reason}.") from error


def check_arguments(key: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument that load_dataset and the builder do not have, and for a
    refused one.

    Args:
        key: method.dataset, for example.
    """
    from inspect import signature

    from datasets import load_dataset
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if given.get("path") is None:
        raise ConfigError(
            f"{key} needs {key}.path: a data set of the hub, a folder, or csv, json, parquet, text "
            f"with {key}.data_files."
        )
    path = str(given["path"])
    known = [name for name in signature(load_dataset).parameters if name != "config_kwargs"]
    if path in _PACKAGED_DATASETS_MODULES:
        known += _arguments_of_builder(key, path)
    elif user_path(path).is_file():
        raise ConfigError(
            f"{key}.path={path} is a file. Use {key}={path}, or {key}.data_files={path} with "
            f"{key}.path=csv, json, parquet or text."
        )
    if path in BUILDERS.values() and not {"data_files", "data_dir"} & set(given):
        # datasets would read the working folder
        raise ConfigError(f"{key}.path={path} needs its files: {key}.data_files=<file>.")
    for name in given:
        if any(URL_WITH_PASSWORD.search(text) for text in _texts_of(given[name])):
            raise ConfigError(
                f"{key}.{name} has a URL with a password, which would be in files and logs. "
                "Download the file, and give its path."
            )
        check_name(f"{key}.{name}", known, REFUSED, PAGE, "argument")


def _texts_of(value: Any) -> list[str]:
    """The texts in a value of an argument, as in a list or a dictionary of splits."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    texts = []
    if isinstance(value, Sequence):
        for item in value:
            texts += _texts_of(item)
    return texts


def _arguments_of_builder(key: str, path: str) -> list[str]:
    """The arguments of a builder of datasets in addition to those of load_dataset.

    Raises ConfigError if it needs a package that is not installed.
    """
    from dataclasses import fields

    from datasets.load import import_main_class
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    module, _ = _PACKAGED_DATASETS_MODULES[path]
    try:
        builder = import_main_class(module)
    except ImportError as error:
        raise ConfigError(f"{key}.path={path}: {first_line(error)}.") from error
    return [field.name for field in fields(builder.BUILDER_CONFIG_CLASS)]


def library_identity(arguments: Mapping[str, Any], *, offline: bool) -> dict[str, Any]:
    """All that determines the rows: the arguments, and the content of local files or the commit of
    a data set of the hub."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    path = str(arguments["path"])
    content = {
        name: value
        for name, value in arguments.items()
        if name not in ("streaming", "num_proc", "data_files", "path")
    }
    folder = user_path(path)
    files: list[Path] = []
    if folder.is_dir():
        files = _files_below(folder)
    elif path in _PACKAGED_DATASETS_MODULES:
        content["path"] = path
        files = _local_files(arguments.get("data_files"))
        if "data_dir" in arguments:
            files += _files_below(user_path(str(arguments["data_dir"])))
    else:
        content["path"] = path
        content["commit"] = commit_of(path, "dataset", arguments.get("revision"), offline=offline)
    if files:
        content["files"] = [_digest(file) for file in files]
    elif "data_files" in arguments:
        content["data_files"] = arguments["data_files"]
    return {"datasets": content}


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _files_below(folder: Path) -> list[Path]:
    """The files in a folder and below, by path."""
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _local_files(data_files: Any) -> list[Path]:
    """The local files that `data_files` names, in its order, by name or with `*`; none for URLs."""
    files = []
    for text in _texts_of(data_files):
        path = user_path(text)
        if path.is_file():
            files.append(path)
        else:
            matching = sorted(glob(str(path), recursive=True))
            files += [Path(name) for name in matching if Path(name).is_file()]
    return files
