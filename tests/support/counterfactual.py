"""Counterfactual routes of a run, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from moe_lab.metrics.counterfactual import ARRAYS, FILE, SCHEMA_VERSION, ScoredTokens, counterfactual


def write_routes(folder: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Write the files of a run whose 30 tokens have a confidence of 0.5 or 1.0. Returns counterfactual.json."""
    rng = np.random.default_rng(0)
    log_probs_Tn = -rng.exponential(size=(30, 4)).astype(np.float32)
    changed_Tn = np.broadcast_to(np.arange(4) > 0, (30, 4))
    confidence_T = np.where(np.arange(30) < 12, 0.5, 1.0)
    tokens = ScoredTokens(
        log_probs_Tn, changed_Tn, log_probs_Tn.mean(axis=1), confidence_T, np.arange(30) % 5
    )
    block = results["moe_lab"]
    content = {
        "schema_version": SCHEMA_VERSION,
        "run_id": block["run_id"],
        "commit": block["model"].get("commit"),
        "n": 4,
        "temperatures": [0.0, 0.5, 0.0],
        "documents": 5,
        **counterfactual(tokens),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps(content))
    (folder / ARRAYS).write_bytes(b"")
    return content
