"""Trainings that runs share. Broken by: one that answers for another model or is trained twice, a resume from a checkpoint
that is incomplete or damaged, a trained model that stays in memory beside the one that is read for evaluating it.
"""

from __future__ import annotations

import weakref

import pytest

from moe_lab.config.schema import Config
from moe_lab.methods.base import Base
from moe_lab.methods.trained import COMPLETE, Trained, last_checkpoint
from tests.support.command import run_command

CONTENT = {"model": {"weights": "a"}, "commit": None, "data": "b", "recipe": {"epochs": 1}, "seed": 0}


def folder_of(config, content, trained):
    artifact = Trained.of(config, content, "model")

    def train(folder):
        trained.append(artifact.id)
        for name in ("model", "checkpoints"):
            (folder / name).mkdir(exist_ok=True)
        return {"steps": len(trained)}

    record = artifact.load_or_train(train)
    assert not (artifact.folder / "checkpoints").exists()
    assert record["id"] == trained[record["steps"] - 1]
    return artifact.folder


def test_another_training_is_made_for_other_content(tmp_path):
    config, trained = Config(method=Base.Config(name="base"), output_dir=str(tmp_path)), []
    first = folder_of(config, CONTENT, trained)
    assert folder_of(config, dict(CONTENT), trained) == first and len(trained) == 1
    others = {folder_of(config, CONTENT | {key: "other"}, trained) for key in CONTENT}
    assert len(others - {first}) == len(CONTENT) and len(trained) == 1 + len(CONTENT)
    (first / "training.json").write_text('{"id": "of another"}')
    assert folder_of(config, CONTENT, trained) == first and len(trained) == 2 + len(CONTENT)


def test_what_is_gone_is_made_again_and_checkpoints_that_a_kill_left_go(tmp_path):
    config, trained = Config(method=Base.Config(name="base"), output_dir=str(tmp_path)), []
    folder = folder_of(config, CONTENT, trained)
    (folder / "checkpoints").mkdir()
    assert folder_of(config, CONTENT, trained) == folder and len(trained) == 1
    (folder / "model").rmdir()
    assert folder_of(config, CONTENT, trained) == folder and len(trained) == 2


def test_what_a_training_leaves_in_reference_cycles_is_removed(tmp_path):
    seen = []

    class Node:
        def __init__(self):
            self.own = self
            seen.append(weakref.ref(self))

    def train(folder):
        (folder / "model").mkdir()
        return {"steps": len([Node()])}

    config = Config(method=Base.Config(name="base"), output_dir=str(tmp_path))
    Trained.of(config, CONTENT, "model").load_or_train(train)
    assert seen[0]() is None


def test_a_training_prints_once_where_its_model_is(tmp_path, capsys):
    config, trained = Config(method=Base.Config(name="base"), output_dir=str(tmp_path)), []
    folder = folder_of(config, CONTENT, trained)
    assert capsys.readouterr().err == f"Trained: {folder / 'model'}\n"
    folder_of(config, CONTENT, trained)
    assert capsys.readouterr().err == "", "it is not trained again"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "method=finetune-freeze method.dataset_size=8 method.validation_size=1 method.max_steps=3",
        "method=pretrain method.steps=2 method.layers=1 method.validation_rows=2",
        "method=soft-prompt method.reference_size=4 method.epochs=1",
        "method=prefix-tuning method.reference_size=4 method.epochs=1",
    ],
)
def test_a_training_that_diverges_ends_in_one_message(capsys, tmp_path, line):
    """A learning rate of 1e30 is a valid number."""
    ended = run_command(
        capsys,
        *(*line.split(), "method.learning_rate=1e30", "model=tiny", "task=toy_choice", "limit=2"),
        *("device=cpu", f"output_dir={tmp_path}"),
    )
    assert ended.code == 1, ended.err
    assert "Traceback" not in ended.err and ended.err.count("Error: ") == 1
    assert not list(tmp_path.glob("models/*/training.json"))


def test_the_newest_complete_one_is_the_last(tmp_path):
    assert last_checkpoint(tmp_path / "none") is None
    checkpoints = {step: tmp_path / f"checkpoint-{step}" for step in (9, 10, 11)}
    for step, checkpoint in checkpoints.items():
        checkpoint.mkdir()
        if step < 11:
            (checkpoint / COMPLETE).touch()
    assert last_checkpoint(tmp_path) == checkpoints[10], "by number, and the eleventh was cut off"
