"""Where a run's expert metrics lie, and whether they are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moe_lab.metrics.registry import METRICS
from moe_lab.results.stored import whole_mapping

SCHEMA_VERSION = 2
FILE = "expert_metrics.json"
FOLDER = "expert_metrics"
"""Answers under masked and random routing, and counts."""
COUNTS = "counts.safetensors"
HEADER = {"metric", "documents", "experts", "top_k", "tokens"}
"""What every expert_metrics.json has beside its metrics."""


def stored_metrics(folder: Path, run_id: str, commit: str | None) -> dict[str, Any] | None:
    """The content of a run's expert_metrics.json, if it is whole and of this run and hub commit; else None."""
    found = whole_mapping(folder / FILE) or {}
    wanted = {"run_id": run_id, "schema_version": SCHEMA_VERSION, "commit": commit}
    mine = {key: found.get(key) for key in wanted} == wanted
    whole = found.keys() >= HEADER | METRICS.keys()
    return found if mine and whole else None  # absent, damaged, or of another run: it is computed
