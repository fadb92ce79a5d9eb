"""What each of two processes does that share the weights of models."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from tests.support.models import load_folder
from tests.support.roe_answers import roe_answers


def measured(folder: Path) -> dict:
    """This rank's results for one model."""
    loaded = load_folder(folder, "float32", tp_plan="auto").model
    local = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in loaded.parameters())
    with torch.no_grad():
        logits = loaded(torch.arange(12)[None]).logits
    return {"local": local, "logits": logits[0].tolist(), "roe": roe_answers(loaded)}


def measure_all(out: Path, folders: list[Path]) -> None:
    """Write this process's results, by the folder's name."""
    results = {folder.name: measured(folder) for folder in folders}
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))
