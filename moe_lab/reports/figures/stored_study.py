"""A study as stored in its folder: study.json, trials.csv, best.yaml."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.reports.papers.cell import TableCell
from moe_lab.results.stored_files import damaged, read_csv, read_mapping

COMPLETE, PRUNED = "COMPLETE", "PRUNED"
METRIC_LABELS = {"perplexity": "validation perplexity", "accuracy": "validation accuracy"}


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A finished trial."""

    number: int
    value: float | None
    """None for a pruned trial."""
    estimate: float | None = None
    """The metric of a pruned trial over the documents that it scored."""
    temperature: float | None
    """The one temperature of all layers with tuning=uniform."""

    @property
    def state(self) -> str:
        return PRUNED if self.value is None else COMPLETE


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """A stored study, for its figures."""

    folder: Path
    info: dict[str, Any]
    """The content of study.json."""
    finished: list[StoredTrial]
    """Complete and pruned trials by number."""
    temperatures: list[float]
    """Temperatures of the best trial, one per MoE layer; empty without a profile."""
    at_bound: list[str]
    """What the profile names as being at the bound of its search, such as "layer_3"."""

    @property
    def tuning(self) -> str:
        return str(self.info["tuning"])

    @property
    def complete(self) -> list[StoredTrial]:
        return [trial for trial in self.finished if trial.value is not None]

    @property
    def untuned(self) -> float | None:
        """The metric of the untuned model, which is trial 0."""
        return next((trial.value for trial in self.complete if trial.number == 0), None)

    @property
    def best(self) -> StoredTrial:
        """The first complete trial with the best value."""
        sign = 1 if self.info["direction"] == "minimize" else -1
        return min(self.complete, key=lambda trial: (sign * float(trial.value or 0), trial.number))

    @property
    def metric_label(self) -> str:
        return METRIC_LABELS[self.info["metric"]]

    @property
    def label(self) -> str:
        """Model, task and tuning documents, for a panel's title."""
        info = self.info
        cache = "" if info["cache"] == "clean" else f",\n{info['cache']} cache"
        return f"{info['model']}, {info['task']}\n(n={info['n']}, {info['num_samples']} documents{cache})"

    @property
    def key(self) -> dict[str, Any]:
        """The columns that name the study in a CSV."""
        return {name: self.info[name] for name in ("model", "task", "tuning", "metric", "n", "cache")}


def studies_of(cells: Sequence[TableCell]) -> list[StoredStudy]:
    """The studies of the cells that have a complete trial, each once."""
    folders = dict.fromkeys(folder for cell in cells for folder in cell.studies)
    return [study for study in map(read_study, folders) if study.complete]


def read_study(folder: Path) -> StoredStudy:
    """Read a study's folder; best.yaml is missing until trial 0 ends."""
    info = read_mapping(folder / "study.json") or {}
    best = read_mapping(folder / "best.yaml") or {}
    try:
        rows = read_csv(folder / "trials.csv")
        trials = [_trial(row) for row in rows if row["state"] in (COMPLETE, PRUNED)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise damaged(folder / "trials.csv", error) from error
    return StoredStudy(
        folder=folder,
        info=info,
        finished=sorted(trials, key=lambda trial: trial.number),
        temperatures=best.get("temperature", []),
        at_bound=best.get("at_bound", []),
    )


def _trial(row: dict[str, str]) -> StoredTrial:
    number = float(row["value"]) if row["value"] else math.nan
    value = number if math.isfinite(number) else None
    temperature = row.get("params_temperature")
    return StoredTrial(
        number=int(row["number"]),
        value=value if row["state"] == COMPLETE else None,
        estimate=value if row["state"] == PRUNED else None,
        temperature=float(temperature) if temperature else None,
    )
