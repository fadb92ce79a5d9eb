"""Breaks if a training's lines are those of another model, or if values by layer are lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moe_lab.reports.loggers.tables import training_lines
from moe_lab.results.model import RunResult

LINES = [
    {"step": 2, "loss": 3.5, "z_loss": [4.0, 5.0]},
    {"step": 4, "validation_loss": 3.25},
]


def run_of(method: str, model: str, output: Path) -> RunResult:
    block = {"method": {"name": method}, method.replace("-", "_"): {"model": model, "training": {}}}
    return RunResult({"moe_lab": block}, output / "runs" / "run")


@pytest.mark.parametrize("method", ["pretrain", "finetune-freeze"])
def test_a_trained_model_has_its_lines(method: str, tmp_path: Path) -> None:
    model = tmp_path / "models" / "mine"
    model.mkdir(parents=True)
    (model / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    found = training_lines(run_of(method, "mine", tmp_path))
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
    untrained = RunResult({"moe_lab": {"method": {"name": "roe"}, "roe": {}}}, tmp_path / "runs" / "run")
    assert training_lines(untrained) == []
    assert training_lines(run_of("pretrain", "gone", tmp_path)) == []


def test_a_training_without_a_model_has_none(tmp_path: Path) -> None:
    """Soft prompts and prefixes report a training; no model is written."""
    block = {"method": {"name": "soft-prompt"}, "soft_prompt": {"training": {"steps": 8}}}
    assert training_lines(RunResult({"moe_lab": block}, tmp_path / "runs" / "run")) == []
