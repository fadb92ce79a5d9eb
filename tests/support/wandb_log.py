"""What W&B wrote, read with its own tools."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Logged:
    """One offline run, read with what `wandb leet inspect` runs, without the second that its own imports take."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.summary = json.loads(self._inspect("--summary", "--json"))
        self.records = [json.loads(line) for line in self._inspect("--json").splitlines()]
        self.history = [r["history"]["item"] for r in self.records if r["type"] == "history"]
        self.run = [record["run"] for record in self.records if record["type"] == "run"][-1]

    def _inspect(self, *flags: str) -> str:
        from wandb.util import get_core_path

        [file] = self.folder.glob("*.wandb")
        command = [get_core_path(), "leet", "inspect", "--no-observability", *flags]
        command += ["--run-file", str(file), str(self.folder.parent)]
        environment = os.environ | {"HOME": str(self.folder)}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    def table(self, key: str) -> dict[str, Any]:
        found = self.summary["summary"][key]
        path = found["path"] if isinstance(found, dict) else self.summary["summary"][f"{key}.path"]
        return json.loads((self.folder / "files" / path).read_text())
