"""A stored run: its folder and its results.json."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.results.samples import read_samples
from moe_lab.results.shapes import results_misfit
from moe_lab.results.stored_files import parsed_once

Samples = dict[str, list[dict[str, Any]]]
"""The lines of lm-eval's sample log by task."""


@dataclass(frozen=True)
class StoredRun:
    """A run that has a result."""

    folder: Path
    results: dict[str, Any]

    @property
    def block(self) -> dict[str, Any]:
        """The `moe_lab` part of its results.json."""
        found: dict[str, Any] = self.results["moe_lab"]
        return found

    @property
    def run_id(self) -> str:
        return str(self.block["run_id"])

    def samples(self) -> Samples:
        """Its sample logs. Raises DamagedError if one is missing or lacks a document."""
        return read_samples(self.folder, self.results)

    def baseline(self) -> StoredRun | None:
        """The run of the untouched model that it is compared with, in the folder beside its own."""
        run_id = (self.block.get("baseline") or {}).get("run_id")
        return None if run_id is None else find_run(self.folder.parent, run_id)


def find_run(runs: Path, run_id: str) -> StoredRun | None:
    """The run with this id in `outputs/runs`, whose folders end in the first 8 characters of their ids."""
    for folder in sorted(runs.glob(f"*-{glob.escape(run_id[:8])}")):
        results = parsed_once(folder / "results.json")
        if results is None or not isinstance(results.get("moe_lab"), dict):
            continue
        if results["moe_lab"].get("run_id") == run_id and results_misfit(results) is None:
            return StoredRun(folder, results)
    return None
