"""What is trained once, whatever is evaluated with it: outputs/models/<model>-<method>-<id8>/."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.progress import naming
from moe_lab.results.atomic import write_json
from moe_lab.results.folder import RunFolder
from moe_lab.results.identity import run_id
from moe_lab.results.stored import whole_mapping

if TYPE_CHECKING:
    from moe_lab.config.schema import Config


def trained_once(
    config: Config, content: dict[str, Any], train: Callable[[Path, str], dict[str, Any]], made: str
) -> dict[str, Any]:
    """What training.json says of the training that `content` determines, and its `folder`.

    Where that is missing, `train(folder, id)` trains, or continues, and returns what there is to say. The folder is
    held meanwhile; another process that trains the same is waited for. `made` is the folder in it of what was trained;
    where that has gone, it is trained again. `checkpoints/` go when training is done.
    """
    folder, digest = folder_of(config, content)
    store = RunFolder(folder, digest)
    record = _record(folder, digest, made)
    if record is None:
        with store.held(wait=True):
            record = _record(folder, digest, made)
            if record is None:
                (folder / "training.json").unlink(missing_ok=True)
                with store.status(), naming(folder.name):
                    record = train(folder, digest) | {"id": digest, **content}
                    write_json(folder / "training.json", record)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return record | {"folder": folder}


def folder_of(config: Config, content: dict[str, Any]) -> tuple[Path, str]:
    """Where such a training is kept, and its id."""
    digest = run_id(content)
    name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{config.model.name}-{config.method.name}-{digest[:8]}")
    return Path(config.output_dir) / "models" / name, digest


def is_trained(config: Config, content: dict[str, Any], made: str) -> bool:
    """Whether it is done, and what it made still there."""
    return _record(*folder_of(config, content), made) is not None


def _record(folder: Path, digest: str, made: str) -> dict[str, Any] | None:
    record = whole_mapping(folder / "training.json")
    done = record is not None and record.get("id") == digest and (folder / made).is_dir()
    return record if done else None
