"""What is logged of the training of a run's model: its log.jsonl by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moe_lab.results.stored_files import read_lines

STEP = "training/step"
METHODS = ("finetune_freeze", "pretrain")
"""Blocks of results.json that name a trained model."""


def training_lines(results: dict[str, Any], folder: Path) -> list[dict[str, float]]:
    """Keys `training/<name>` per line of the log; `training/<name>/layer_<i>` for a value by layer.

    `folder` is that of the run, beside whose parent the models are. Empty where the method trained no model, or its
    folder has gone.
    """
    names = [results["moe_lab"][method]["model"] for method in METHODS if method in results["moe_lab"]]
    lines = [line for name in names for line in _lines(folder.parent.parent / "models" / name)]
    return [_flat(line) for line in lines]


def _lines(folder: Path) -> list[dict[str, Any]]:
    return read_lines(folder / "log.jsonl") or []


def _flat(line: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, list):
            found |= {f"training/{name}/layer_{layer}": one for layer, one in enumerate(value)}
        else:
            found[f"training/{name}"] = value
    return found
