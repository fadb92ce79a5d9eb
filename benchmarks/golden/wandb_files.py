"""What W&B logged offline, as JSON. Its own files are binary, and their names have times and random
parts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

TABLE_NAME = re.compile(r"_\d+_[0-9a-f]+\.table\.json$")
"""The end of a table's name: a step, and a hash of its content, which has times."""
RUN_KEYS = ("config", "display_name", "job_type", "project", "run_group", "run_id", "tags")
"""What moe_lab sets of a W&B run; W&B adds its clock, the computer and the imported libraries."""
STORED_WITH = re.compile(r"(^|/)_|\.(_|artifact_path|path|sha256|size|log_mode)")
"""What W&B adds to the values that it is given: the clock, and where it keeps tables and
pictures."""


def replace_by_json(folder: Path, environment: dict[str, str]) -> None:
    """Replace W&B's folder, if there is one, by `<run>.json` for each W&B run."""
    if not folder.is_dir():
        return
    logged = {}
    for file in sorted(folder.glob("offline-run-*/*.wandb")):
        logged[file.stem] = read_run(file, environment)
    shutil.rmtree(folder)
    folder.mkdir()
    for name, content in logged.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1), "utf-8")


def read_run(file: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The configuration, the history and the tables of one W&B run."""
    from wandb.util import get_core_path

    command = [get_core_path(), "leet", "inspect", "--no-observability", "--json"]
    command += ["--run-file", str(file), str(file.parents[1])]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    configurations = []
    history = []
    for line in ended.stdout.splitlines():
        record = json.loads(line)
        if record["type"] == "run":
            settings = record["run"]
            settings["config"]["update"].pop("_wandb", None)
            configurations.append({key: settings.get(key) for key in RUN_KEYS})
        elif record["type"] == "config":
            configurations.append(record["config"])
        elif record["type"] == "history":
            history.append(without_storage(record["history"]["item"]))
    return {"configurations": configurations, "history": history, "tables": tables_in(file.parent)}


def without_storage(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if not STORED_WITH.search(key)}


def tables_in(folder: Path) -> dict[str, Any]:
    """By name, the rows of each table."""
    tables = {}
    media = folder / "files" / "media" / "table"
    for file in sorted(media.rglob("*.table.json")):
        table = json.loads(file.read_text("utf-8"))
        name = TABLE_NAME.sub("", file.relative_to(media).as_posix())
        tables[name] = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    return tables
