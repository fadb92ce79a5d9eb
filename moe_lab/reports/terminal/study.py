"""The table of studies on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.terminal.layout import (
    Cells,
    TextTable,
    cells_of,
    fixed,
    names,
    numbers,
    print_text_table,
    text_table,
)
from moe_lab.results.measured import number
from moe_lab.results.stored_files import read_mapping

EXPLAINED = {
    "documents": "the number of tuning documents.",
    "at bound": "tuned values at the bound of their search; better values may lie beyond it.",
    "trial 0": "the metric before tuning: the base model's, or with the given temperatures.",
    "calibrated": "the metric at temperature 0 and its best logit scale (docs/calibration.md).",
    "tuned": "the metric with the values of the best trial.",
}
"""The meanings of columns."""


def print_studies(folders: Sequence[Path]) -> None:
    """Print a row per study with a profile: the first and the best score on the tuning documents; then the files."""
    files = [folder / "best.yaml" for folder in dict.fromkeys(folders)]
    profiles = {file: profile for file in files if (profile := read_mapping(file)) is not None}
    if not profiles:
        return
    print_text_table(study_table(list(profiles.values())), EXPLAINED)
    for file in profiles:
        print(file)
    print()


def study_table(profiles: Sequence[dict[str, Any]]) -> TextTable:
    """One row per profile (best.yaml)."""
    task: Cells = {
        "model": lambda profile: profile["model"],
        "task": lambda profile: profile["task"],
        "metric": lambda profile: f"{profile['metric']} ({profile['split']})",
    }
    scaled = any(profile.get("logit_scale", 1) != 1 for profile in profiles)
    found: Cells = {
        "documents": lambda profile: f"{sum(map(len, profile['samples'].values())):,}",
        "trials": lambda profile: str(profile["trials"]),
        "best trial": lambda profile: str(profile["trial"]),
        "calibrated": lambda profile: number(profile.get("calibrated_score")),
        "trial 0": lambda profile: number(profile["untuned_score"]),
        "tuned": lambda profile: number(profile["score"]),
        "logit scale": lambda profile: f"{profile.get('logit_scale', 1):.3g}" if scaled else "",
        "at bound": lambda profile: ", ".join(profile.get("at_bound", [])),
        "temperature per MoE layer": lambda profile: " ".join(map(fixed, profile["temperature"])),
        "settings": lambda profile: ", ".join(f"{k}={v}" for k, v in (profile.get("settings") or {}).items()),
    }
    columns = [*names(cells_of(profiles, task)), *numbers(cells_of(profiles, found))]
    return text_table("Tuning, on documents that are excluded from the test", columns)
