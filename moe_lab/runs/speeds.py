"""The measured speed of stored runs and of pilots. From it a plan estimates the hours of runs on the same machine."""

from __future__ import annotations

import glob
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.results.atomic import write_atomically
from moe_lab.results.identity import folder_name, task_label
from moe_lab.results.model import Cost, read_run
from moe_lab.results.stored_files import DamagedError, whole_mapping

if TYPE_CHECKING:
    from moe_lab.runs.run import Run

PILOTS = "pilots"
"""The folder of pilots in the output folder."""


@dataclass(frozen=True)
class Speed:
    """Forward tokens per second, without loading, and the device."""

    tokens_per_second: float
    device: str

    def hours(self, tokens: float) -> float:
        return tokens / self.tokens_per_second / 3600


def label_of(run: Run) -> tuple[str, str, str]:
    """The model, method and task whose speed a run has."""
    return run.facts.name, run.config.method.name, task_label(run.config.task.name)


def measured_speed(output: Path, model: str, method: str, task: str) -> Speed | None:
    """The speed of the newest stored run of a model, a method and a task, with whatever settings and examples.

    `task` is `task_label` of its tasks. Without such a run that of its pilot; None without a pilot, too.
    """
    same = folder_name(model, method, task, digest="")
    folders = (output / "runs").glob(f"{glob.escape(same)}*")
    for folder in sorted(folders, key=_changed, reverse=True):
        cost = _cost_in(folder)
        if cost is not None and cost.tokens_per_second:
            return Speed(cost.tokens_per_second, cost.device or "another device")
    pilot = whole_mapping(_pilot(output, model, method, task))
    return None if pilot is None else Speed(pilot["tokens_per_second"], pilot["device"])


def store_pilot(output: Path, model: str, method: str, task: str, speed: Speed) -> None:
    """Keep the speed of a pilot, which `measured_speed` takes where no run is stored."""
    file = _pilot(output, model, method, task)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(asdict(speed)))


def _pilot(output: Path, model: str, method: str, task: str) -> Path:
    return output / PILOTS / f"{folder_name(model, method, task, digest='speed')}.json"


def _changed(folder: Path) -> float:
    """When the folder was changed; 0 for one that is gone by now."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _cost_in(folder: Path) -> Cost | None:
    try:
        run = read_run(folder)
    except DamagedError:
        return None  # the run's own command says so
    return None if run is None else run.cost
