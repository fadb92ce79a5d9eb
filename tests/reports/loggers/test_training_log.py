"""Breaks if a training's lines are those of another model, or if values by layer are lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moe_lab.reports.loggers.training_log import training_lines

LINES = [
    {"step": 2, "loss": 3.5, "z_loss": [4.0, 5.0]},
    {"step": 4, "validation_loss": 3.25},
]


@pytest.mark.parametrize("method", ["pretrain", "finetune_freeze"])
def test_a_trained_model_has_its_lines(method: str, tmp_path: Path) -> None:
    model = tmp_path / "models" / "mine"
    model.mkdir(parents=True)
    (model / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    found = training_lines({"moe_lab": {method: {"model": "mine"}}}, tmp_path / "runs" / "run")
    assert found == [
        {
            "training/step": 2,
            "training/loss": 3.5,
            "training/z_loss/layer_0": 4.0,
            "training/z_loss/layer_1": 5.0,
        },
        {"training/step": 4, "training/validation_loss": 3.25},
    ]


def test_a_run_without_training_has_none(tmp_path: Path) -> None:
    assert training_lines({"moe_lab": {"roe": {}}}, tmp_path / "runs" / "run") == []
    gone = {"moe_lab": {"pretrain": {"model": "gone"}}}
    assert training_lines(gone, tmp_path / "runs" / "run") == []
