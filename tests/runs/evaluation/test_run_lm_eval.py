"""Breaks if the figures of a training are drawn again by each run of its model, or never."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.runs.evaluation.run_lm_eval import resolve_trained
from tests.support.runs import facts


def test_the_figures_of_a_training_are_drawn_once(tmp_path, monkeypatch):
    drawn: list[Path] = []

    def draw(folder: Path, held_out: str) -> None:
        drawn.append(folder)
        (folder / "figures").mkdir()
        (folder / "figures" / "loss.png").touch()

    monkeypatch.setattr("moe_lab.runs.evaluation.run_lm_eval.write_training_figures", draw)
    config = Config(model=ModelConfig(name="m", path=str(tmp_path / "model")))
    method: Any = SimpleNamespace(resolve_model=lambda *given: config)
    for log in (False, True, True):
        if log:
            (tmp_path / "log.jsonl").touch()
        assert resolve_trained(method, config, facts(), lambda: None) is config
        assert drawn == [tmp_path] * log
