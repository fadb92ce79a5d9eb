"""Where a run's expert metrics lie, and whether they are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 2
FILE = "expert_metrics.json"
FOLDER = "expert_metrics"
"""Answers under masked and random routing, and counts."""
COUNTS = "counts.safetensors"
SEEDS = (0, 1, 2)
"""Of random routing; the loss is averaged over them."""
PRUNED = ("least", "most")
"""Which expert of each layer is masked: the least or the most selected one."""
EVALUATIONS = len(SEEDS) + len(PRUNED)
"""How often the documents are evaluated again."""


def stored_metrics(folder: Path, run_id: str, commit: str | None) -> dict[str, Any] | None:
    """The content of a run's expert_metrics.json, if it is whole and of this run and hub commit; else None."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        mine = found["run_id"] == run_id and found["schema_version"] == SCHEMA_VERSION
        return found if mine and found["commit"] == commit else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # absent, torn by another program, or not ours: it is computed
