"""Where the temperatures or the weights of runs come from: a study or a training, as pages show it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.reports.pages.page import pictures_in, write_page
from moe_lab.reports.pages.stored_run import StoredRun
from moe_lab.results.stored_files import damaged, read_csv, whole_mapping

HIDDEN = ("id", "study_id", "study", "data")
"""Keys whose values say nothing to a reader."""


@dataclass(frozen=True)
class Origin:
    """A study or a training."""

    title: str
    facts: dict[str, Any]
    pictures: list[tuple[str, str]]
    """Name and data URI of the figures in its folder."""
    trials: list[dict[str, str]]
    """The lines of a study's trials.csv."""


def origin_of(folder: Path) -> Origin | None:
    """The study in `outputs/studies` or the training in `outputs/models` with this folder; None if it has no record."""
    if folder.parent.name == "studies":
        study, best = (whole_mapping(folder / name) for name in ("study.json", "best.yaml"))
        if study is None:
            return None
        facts = _facts(study | (best or {}))
        return Origin(f"Study {folder.name}", facts, pictures_in(folder), _trials(folder))
    training = whole_mapping(folder / "training.json")
    if training is None:
        return None
    recipe, validation = (training.get(key) or {} for key in ("recipe", "validation"))
    losses = {f"held-out {key}": value for key, value in validation.items()}
    return Origin(f"Training {folder.name}", _facts(training | recipe | losses), pictures_in(folder), [])


def origins_of(runs: Sequence[StoredRun]) -> list[Origin]:
    """The studies and trainings of some runs, each once."""
    folders = [folder for run in runs for folder in _folders(run)]
    return [origin for folder in dict.fromkeys(folders) if (origin := origin_of(folder)) is not None]


def write_origin_page(folder: Path) -> Path | None:
    """Write `report.html` of a study or a training into its folder; None if it has no record. Raises ResultsError."""
    origin = origin_of(folder)
    return None if origin is None else write_page(folder / "report.html", "origin.html.j2", origin=origin)


def _folders(run: StoredRun) -> list[Path]:
    output, block = run.folder.parent.parent, run.block
    study = (block.get("tuning") or {}).get("study")
    report = block.get(block["method"]["name"].replace("-", "_")) or {}
    model = report.get("model") if "training" in report else None
    return [output / part / name for part, name in (("studies", study), ("models", model)) if name]


def _facts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Single numbers and words."""
    return {k: v for k, v in content.items() if isinstance(v, str | int | float) and k not in HIDDEN}


def _trials(folder: Path) -> list[dict[str, str]]:
    path = folder / "trials.csv"
    if not path.is_file():
        return []
    try:
        return read_csv(path)
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(path, error) from error
