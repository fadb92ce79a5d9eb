"""The hub of the rehearsal on loopback, and the environment that makes every library ask it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.rehearsal import data, models
from tests.support.hub.repositories import Repository
from tests.support.hub.server import Hub
from tests.support.judges.moderation_server import KEY, ModerationServer

DATA_SETS = (
    *data.PUBLISHED,
    *data.OTHER_COLUMNS,
    data.KNOWREF,
    "GAIR/lima",
    "cais/mmlu",
    "hails/bigbench",
)


@contextmanager
def stage(folder: Path, ids: Iterable[str], data_dir: Path | None) -> Iterator[None]:
    """Serve these models and all data sets.

    Repositories are written to `folder` once. Call this before the libraries of Hugging Face are
    imported: they read the hub's address when they are imported.
    """
    hub = Hub()
    moderation = ModerationServer()
    with hub.serving(), moderation.serving():
        os.environ |= {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "cache"),
            "HF_HUB_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": moderation.url,
            "TOKENIZERS_PARALLELISM": "false",
        }
        vocabulary = _made(
            folder / "tokenizer.json", lambda file: models.train_vocabulary(_texts(data_dir), file)
        )
        for id in ids:
            write_model = partial(models.write_model, id, vocabulary=vocabulary)
            _publish(hub, "models", id, folder, write_model)
        for id in DATA_SETS:
            write_data_set = partial(data.write_data_set, id, data_dir=data_dir)
            _publish(hub, "datasets", id, folder, write_data_set)
        yield


def _publish(hub: Hub, kind: str, id: str, folder: Path, write: Callable[[Path], object]) -> None:
    place = _made(folder / kind / id.replace("/", "--"), write)
    files = {
        file.relative_to(place).as_posix(): file.read_bytes()
        for file in sorted(place.rglob("*"))
        if file.is_file()
    }
    hub.add(Repository(id, kind)).commit(files)


def _made(path: Path, write: Callable[[Path], object]) -> Path:
    """A file or folder, written by `write(path)` if it is missing. An interrupted one is written
    again."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            new = Path(scratch) / path.name
            if not path.suffix:
                new.mkdir()
            write(new)
            if not path.exists():  # another worker may have written it
                shutil.move(new, path)
    return path


def _texts(data_dir: Path | None) -> Iterator[str]:
    for name, (splits, _) in data.MADE.items():
        for row in data.rows(name, splits[-1], data_dir):
            yield " ".join(value for value in row.values() if isinstance(value, str))
