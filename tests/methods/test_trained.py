"""Trainings that runs share. Broken by: one that answers for another model, or is made twice."""

from __future__ import annotations

import pytest

from moe_lab.config.schema import Config
from moe_lab.methods.base import Base
from moe_lab.methods.trained import Trained

CONTENT = {"model": {"weights": "a"}, "commit": None, "data": "b", "recipe": {"epochs": 1}, "seed": 0}


def folder_of(config, content, trained):
    artifact = Trained.of(config, content, "model")

    def train(folder):
        trained.append(artifact.id)
        for name in ("model", "checkpoints"):
            (folder / name).mkdir(exist_ok=True)
        return {"steps": len(trained)}

    record = artifact.load_or_train(content, train)
    assert not (record["folder"] / "checkpoints").exists()
    assert record["id"] == trained[record["steps"] - 1]
    return record["folder"]


@pytest.mark.parametrize("key", CONTENT)
def test_another_training_is_made_for_other_content(key, tmp_path):
    config, trained = Config(method=Base.Config(name="base"), output_dir=str(tmp_path)), []
    first = folder_of(config, CONTENT, trained)
    assert folder_of(config, dict(CONTENT), trained) == first and len(trained) == 1
    assert folder_of(config, CONTENT | {key: "other"}, trained) != first and len(trained) == 2
    (first / "training.json").write_text('{"id": "of another"}')
    assert folder_of(config, CONTENT, trained) == first and len(trained) == 3


def test_what_is_gone_is_made_again_and_checkpoints_that_a_kill_left_go(tmp_path):
    config, trained = Config(method=Base.Config(name="base"), output_dir=str(tmp_path)), []
    folder = folder_of(config, CONTENT, trained)
    (folder / "checkpoints").mkdir()
    assert folder_of(config, CONTENT, trained) == folder and len(trained) == 1
    (folder / "model").rmdir()
    assert folder_of(config, CONTENT, trained) == folder and len(trained) == 2
