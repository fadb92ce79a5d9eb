"""The files of a run's expert metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from moe_lab.metrics.registry import HEADER, metrics, plugin_sources
from moe_lab.results.atomic import write_atomically
from moe_lab.results.stored_files import whole_mapping

SCHEMA_VERSION = 3
FILE = "expert_metrics.json"
BY_DOCUMENT = "by_document.safetensors"
FOLDER = "expert_metrics"
"""Counts, and answers under changed routing."""
COUNTS = "counts.safetensors"
Arrays = dict[str, np.ndarray]
"""By the path in expert_metrics.json, such as "capacity/least/tasks/arc_easy/acc,none/scores". Counted metrics have
LEFT_OUT, [1 + G] (G groups of documents); the others have SCORES, [1 + R, N] (R evaluations of N documents)."""


def stored_metrics(folder: Path, run_id: str, commit: str | None) -> dict[str, Any] | None:
    """The content of a run's expert_metrics.json if it is complete and of this run and hub commit, else None.

    It is complete if it has all metrics, those of plug-ins by their source of now.
    """
    content = whole_mapping(folder / FILE) or {}
    expected = {"run_id": run_id, "schema_version": SCHEMA_VERSION, "commit": commit}
    is_own = {key: content.get(key) for key in expected} == expected
    complete = content.keys() >= HEADER | metrics().keys() and (folder / FOLDER / BY_DOCUMENT).is_file()
    current = plugin_sources().items() <= content.get("plugins", {}).items()
    return content if is_own and complete and current else None


def without_arrays(found: dict[str, Any], path: str = "") -> tuple[dict[str, Any], Arrays]:
    """The mapping without its numpy arrays, and the arrays by their paths."""
    plain: dict[str, Any] = {}
    arrays: Arrays = {}
    for key, value in found.items():
        if isinstance(value, np.ndarray):
            arrays[f"{path}{key}"] = value
        elif isinstance(value, dict):
            plain[key], inner = without_arrays(value, f"{path}{key}/")
            arrays |= inner
        else:
            plain[key] = value
    return plain, arrays


def write_arrays(folder: Path, arrays: Arrays) -> None:
    """Write them into the folder atomically. Raises ResultsError."""
    from safetensors.numpy import save

    write_atomically(
        folder / BY_DOCUMENT, save({path: np.ascontiguousarray(array) for path, array in arrays.items()})
    )


def read_arrays(folder: Path) -> Arrays:
    """The arrays that `write_arrays` wrote."""
    from safetensors.numpy import load_file

    return load_file(folder / BY_DOCUMENT)
