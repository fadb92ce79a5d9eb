"""The measured speed of stored runs. From it a plan estimates the hours of runs on the same machine."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path

from moe_lab.results.identity import folder_name
from moe_lab.results.model import Cost, read_run
from moe_lab.results.stored_files import DamagedError


@dataclass(frozen=True)
class Speed:
    """Forward tokens per second, without loading, and the device."""

    tokens_per_second: float
    device: str

    def hours(self, tokens: float) -> float:
        return tokens / self.tokens_per_second / 3600


def measured_speed(output: Path, model: str, method: str, task: str) -> Speed | None:
    """The speed of the newest stored run of a model, a method and a task, with whatever settings and examples.

    `task` is `task_label` of its tasks. None without such a run.
    """
    same = folder_name(model, method, task, digest="")
    folders = (output / "runs").glob(f"{glob.escape(same)}*")
    for folder in sorted(folders, key=_changed, reverse=True):
        cost = _cost_in(folder)
        if cost is not None and cost.tokens_per_second:
            return Speed(cost.tokens_per_second, cost.device or "another device")
    return None


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
