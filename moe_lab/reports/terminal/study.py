"""The table of studies on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.terminal.layout import TextTable, names, numbers, print_text_table, text_table
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
    task = {
        "model": [profile["model"] for profile in profiles],
        "task": [profile["task"] for profile in profiles],
        "metric": [f"{profile['metric']} ({profile['split']})" for profile in profiles],
    }
    trials = {
        "trials": [str(profile["trials"]) for profile in profiles],
        "best trial": [str(profile["trial"]) for profile in profiles],
    }
    scores = {
        "trial 0": [number(profile["untuned_score"]) for profile in profiles],
        "tuned": [number(profile["score"]) for profile in profiles],
    }
    scaled = {}
    if any(profile.get("calibrated_score") is not None for profile in profiles):
        scores = {"calibrated": [number(profile.get("calibrated_score")) for profile in profiles]} | scores
    if any(profile.get("logit_scale", 1) != 1 for profile in profiles):
        scaled = {"logit scale": [f"{profile.get('logit_scale', 1):.3g}" for profile in profiles]}
    if any(profile.get("at_bound") for profile in profiles):
        scaled["at bound"] = [", ".join(profile.get("at_bound", [])) or "-" for profile in profiles]
    tuned = {}
    if any(profile["temperature"] for profile in profiles):
        temperatures = [" ".join(f"{value:.2f}" for value in profile["temperature"]) for profile in profiles]
        tuned["temperature per MoE layer"] = temperatures
    if any(profile.get("settings") for profile in profiles):
        settings = [profile.get("settings") or {} for profile in profiles]
        tuned["settings"] = [", ".join(f"{key}={value}" for key, value in own.items()) for own in settings]
    columns = numbers({"documents": list(map(_documents, profiles))} | trials | scores | scaled | tuned)
    return text_table("Tuning, on documents that are excluded from the test", [*names(task), *columns])


def _documents(profile: dict[str, Any]) -> str:
    """The number of tuning documents."""
    return f"{sum(map(len, profile['samples'].values())):,}"
