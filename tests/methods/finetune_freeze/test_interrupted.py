"""A fine-tuning that stops before its end.

Broken by: a resume that ends in other weights or forgets what was measured, a loss or a checkpoint
that fails without a message, a message that promises a checkpoint that is not there.
"""

import errno
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import OlmoeForCausalLM, trainer_callback

from moe_lab.errors import ResultsError, TrainingError
from moe_lab.methods import trainer as shared
from moe_lab.methods.finetune_freeze.training import finetune
from moe_lab.metrics.training_metrics import read_measurements
from moe_lab.models.memory import weight_bytes
from tests.support.files import files_up_to
from tests.support.models import small_model
from tests.support.trainings import (
    assert_same,
    interrupted,
    train,
    training_of,
)


class Trained(NamedTuple):
    model: Any
    measurements: list[dict[str, Any]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Callable[..., Trained]:
    """A function of a family and settings.

    It returns the model after a training that nothing interrupts, and its measurements.
    """

    @cache
    def trained(family: str, **settings: Any) -> Trained:
        model = deepcopy(small_model(family))
        folder = tmp_path_factory.mktemp("uninterrupted")
        train(model, folder, **settings)
        return Trained(model, measurements_in(folder))

    return trained


def measurements_in(folder: Path) -> list[dict[str, Any]]:
    """Without their durations."""
    return [line | {"seconds": 0} for line in read_measurements(folder)]


def last_checkpoint_in(folder: Path) -> str:
    return shared.last_checkpoint(folder / "checkpoints").name


@pytest.mark.parametrize(
    ("family", "last", "held_out", "measurements"),
    [
        ("olmoe", 4, 0, 0),
        pytest.param("deepseek", 2, 2, 3, marks=pytest.mark.slow),
        pytest.param("deepseek", 4, 2, 3, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_training_ends_in_the_same_bytes(
    family, last, held_out, measurements, uninterrupted, tmp_path, capsys
):
    """The switch is at step 3: it was interrupted in one phase or in the other.

    Experts are measured at steps 0, 3 and 6. The resumed training measures again what was measured
    after the last checkpoint.
    """
    settings = {
        "schedule": "none-router",
        "save_steps": 2,
        "epochs": 2,
        "count": 6,
        "held_out": held_out,
    }
    expected = uninterrupted(family, **settings)
    assert len(expected.measurements) == measurements
    folder = tmp_path / "cut"
    with interrupted(last + 1):
        train(deepcopy(small_model(family)), folder, **settings)
    assert len(measurements_in(folder)) == held_out
    assert last_checkpoint_in(folder) == f"checkpoint-{last}"

    resumed = deepcopy(small_model(family))
    capsys.readouterr()
    training_info = train(resumed, folder, **settings)
    assert f"cut: training, continuing at step {last} of 6\n" in capsys.readouterr().err
    assert_same(expected.model, resumed)
    assert measurements_in(folder) == expected.measurements

    finished = training_of(folder, **settings)
    model_again, info_again = finetune(finished, deepcopy(small_model(family)))
    assert info_again == training_info, "done, but not written: nothing is trained"
    assert_same(expected.model, model_again)


@pytest.mark.parametrize(
    ("save_steps", "is_kept"), [pytest.param(1000, False, id="None"), pytest.param(3, True, id="3")]
)
def test_a_validation_loss_that_is_nan_stops_and_promises_only_what_is_there(
    save_steps, is_kept, tmp_path, monkeypatch
):
    forward = OlmoeForCausalLM.forward

    def forward_with_nan(self, *args, **inputs):
        outputs = forward(self, *args, **inputs)
        if not self.training and outputs.loss is not None:
            outputs.loss = outputs.loss * float("nan")
        return outputs

    monkeypatch.setattr(OlmoeForCausalLM, "forward", forward_with_nan)
    message = "The validation loss of training step 6 is nan"
    with pytest.raises(TrainingError, match=message) as stop:
        train(deepcopy(small_model("olmoe")), tmp_path, held_out=2, save_steps=save_steps)
    assert ("last checkpoint is kept" in str(stop.value)) == is_kept
    for file in tmp_path.glob("*.jsonl"):
        assert "NaN" not in file.read_text()


def test_a_full_disk_during_a_checkpoint_keeps_the_last_one(uninterrupted, tmp_path, monkeypatch):
    """The same command then continues."""
    settings = {"save_steps": 2, "schedule": "none-router"}
    expected = uninterrupted("olmoe", **settings)
    folder = tmp_path / "cut"
    state = trainer_callback.TrainerState
    write = state.save_to_json

    def write_until_the_disk_is_full(self, path):
        if "checkpoint-4" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(state, "save_to_json", write_until_the_disk_is_full)
        with pytest.raises(ResultsError, match=r"checkpoint-4 .*No space left"):
            train(deepcopy(small_model("olmoe")), folder, **settings)
    assert last_checkpoint_in(folder) == "checkpoint-2"

    resumed = deepcopy(small_model("olmoe"))
    train(resumed, folder, **settings)
    assert_same(expected.model, resumed)


@pytest.mark.parametrize(
    ("share", "reason"),
    [(0.1, "File too large"), (1.5, "torch.save failed, perhaps because the disk is full")],
)
def test_a_checkpoint_whose_tensors_cannot_be_written_is_named(share, reason, tmp_path):
    """safetensors writes the weights. torch.save writes the optimizer, which is twice as large.

    Neither raises an OSError. The kernel's limit on the size of a file stands for a full disk.
    """
    model = deepcopy(small_model("olmoe"))
    limit = files_up_to(round(share * weight_bytes(model)))
    with limit, pytest.raises(ResultsError, match=f"checkpoint-2 could not be written: {reason}"):
        train(model, tmp_path, save_steps=2)
