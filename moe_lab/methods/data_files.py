"""Data sets that a method trains on: files of the hub, of `data_dir`, or of the user, and their rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import TaskError
from moe_lab.methods.hub_files import train_files

if TYPE_CHECKING:
    from moe_lab.config.schema import Config


def data_files(
    config: Config,
    dataset: str,
    known: Mapping[str, str],
    suffixes: tuple[str, ...],
    generated: Iterable[str] = ("toy",),
) -> tuple[list[Path], dict[str, str] | None]:
    """The files of `method.dataset` in their order, and the hub's data set and commit they are from.

    `known` are ids of the hub by short name; `suffixes` are those of a user's own file; `generated` are the names of
    data sets without files, for the message. Raises TaskError for an unknown name, and for files that are not there.
    """
    if dataset.endswith(suffixes):
        path = Path(dataset).expanduser()
    elif dataset not in known and not re.fullmatch(r"[\w.-]+/[\w.-]+", dataset):
        raise TaskError(
            f"method.dataset={dataset} is unknown. Use {', '.join([*generated, *known])}, owner/name on the hub, or "
            f"the path of a {' or '.join(suffixes)} file."
        )
    elif config.data_dir is None:
        id = known.get(dataset, dataset)
        files, commit = train_files(id, offline=config.offline)
        return files, {"data_set": id, "commit": commit}
    else:
        path = Path(config.data_dir).expanduser() / dataset.rpartition("/")[2] / "train.jsonl"
    if not path.is_file():
        raise TaskError(f"method.dataset={dataset}: there is no file {path}.")
    return [path], None


def read_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """The rows of a .jsonl, .json or .parquet file, each with the place to name in a message.

    Raises TaskError for a file that cannot be read, and for a line that is no JSON.
    """
    try:
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield _parsed(line, place := f"{path}, line {number}"), place
            return
        if path.suffix == ".json":
            content = _parsed(path.read_text(encoding="utf-8"), str(path))
            rows = iter(content if isinstance(content, list) else [content])
        else:
            rows = _parquet_rows(path)
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}.") from error
    for number, row in enumerate(rows, start=1):
        yield row, f"{path}, row {number}"


def _parquet_rows(path: Path) -> Iterator[Any]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                yield from batch.to_pylist()
    except (OSError, ArrowException) as error:
        raise TaskError(f"{path} cannot be read: {error}.") from error


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TaskError(f"{place}: no JSON ({error}).") from error
