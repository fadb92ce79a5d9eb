"""Held-out conversations. Broken by: one that is trained on, a training that goes on or stops where it must not, the
weights of another epoch than the best, a resume that forgets what was measured.
"""

from __future__ import annotations

import json
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods.data_files import read_data
from moe_lab.methods.finetune_freeze import trainer as trainer_module
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.trainer import AtEpochEnds, stopped
from moe_lab.methods.tokenized import Pad
from tests.support.models import small_model
from tests.support.trainings import assert_same, interrupted, rows, train

SETTINGS = {"count": 6, "held_out": 5, "epochs": 4, "learning_rate": 1e-3}
RISING = {**SETTINGS, "epochs": 6, "learning_rate": 0.02, "early_stop_patience": 2}
"""Overfits: the lowest validation loss is that of an early epoch."""


def logged(folder) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "validation_loss" in line]


def test_it_is_the_loss_per_answer_token_of_what_is_held_out(tmp_path):
    model = deepcopy(small_model("olmoe"))
    told = train(model, tmp_path, **SETTINGS)
    lines = logged(tmp_path)
    assert [line["step"] for line in lines] == [3, 6, 9, 12]
    assert told["validation"]["losses"] == [{"step": x["step"], "loss": x["validation_loss"]} for x in lines]
    batch = Pad(0)([{"input_ids": row.ids, "labels": row.labels} for row in rows(11)[6:]])
    with torch.no_grad():
        assert lines[-1]["validation_loss"] == pytest.approx(model.eval()(**batch).loss.item(), rel=1e-5)


@pytest.mark.slow
def test_measuring_does_not_change_the_training(tmp_path):
    one, other = deepcopy(small_model("olmoe")), deepcopy(small_model("olmoe"))
    train(one, tmp_path / "one", **SETTINGS)
    train(other, tmp_path / "other", **SETTINGS | {"held_out": 0})
    assert_same(one, other)


def test_patience():
    assert not stopped([3.0, 2.0, 2.5], 2) and stopped([3.0, 2.0, 2.5, 2.0], 2)
    assert stopped([1.0, 2.0], 1) and not stopped([2.0], 1) and not stopped([], 1)
    control = SimpleNamespace(should_save=False, should_training_stop=True)
    AtEpochEnds(1, 5).on_evaluate(None, SimpleNamespace(log_history=[]), control)
    assert control.should_training_stop, "what others stopped stays so"


def test_it_stops_early_with_the_best_epochs_weights(tmp_path):
    model, best = deepcopy(small_model("olmoe")), deepcopy(small_model("olmoe"))
    told = train(model, tmp_path / "stopped", **RISING)["validation"]
    losses = [line["loss"] for line in told["losses"]]
    number = losses.index(min(losses))
    assert number + 3 == len(losses) < 6, f"two epochs after the best one: {losses}"
    assert told["kept_step"] == told["losses"][number]["step"]

    def stop(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == told["kept_step"]

    whole = {**RISING, "early_stop_patience": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module.Freezing, "on_step_end", stop, raising=False)
        train(best, tmp_path / "best", **whole)
    assert_same(model, best)


RESUMED = {**RISING, "save_steps": 2, "schedule": "none-router"}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """(a model after a training that nothing interrupts, what the training reports)"""
    model = deepcopy(small_model("olmoe"))
    return model, train(model, tmp_path_factory.mktemp("unbroken"), **RESUMED)


@pytest.mark.slow
@pytest.mark.parametrize("last", (1, 3, 4, 8))
def test_a_resumed_training_stops_at_the_same_epoch(last, unbroken, tmp_path):
    resumed, settings = deepcopy(small_model("olmoe")), RESUMED
    whole, told = unbroken
    assert told["validation"]["losses"][-1]["step"] == 9
    with interrupted(last):
        train(deepcopy(small_model("olmoe")), tmp_path / "cut", **settings)
    assert train(resumed, tmp_path / "cut", **settings) == told
    assert_same(whole, resumed)
    again = deepcopy(small_model("olmoe"))
    assert train(again, tmp_path / "cut", **settings) == told, "done, but not written: nothing is trained"
    assert_same(whole, again)


def test_the_last_conversations_of_a_list_are_held_out_and_toy_has_others(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"conversations": [f"ask {i}", "x"]}) + "\n" for i in range(9)))

    def read(**keys):
        own = FinetuneConfig(dataset=str(path), **keys)
        data = read_data(Config(), own.dataset, own.dataset_size, own.held_out)
        return [[one[0]["content"][4:] for one in part] for part in (data.train, data.validation)]

    assert read() == [list("012345678"), []]
    assert read(validation_size=2) == [list("0123456"), list("78")]
    assert read(validation_size=2, dataset_size=5) == [list("012"), list("34")]
    with pytest.raises(TaskError, match="holds them all out"):
        read(validation_size=9)
    with pytest.raises(ConfigError, match="method.validation_size=100"):
        read(early_stop_patience=1)

    toy = FinetuneConfig()
    data = read_data(Config(), toy.dataset, toy.dataset_size, toy.held_out)
    assert (len(data.train), len(data.validation)) == (1000, 100)
    asked = [{one[0]["content"] for one in part} for part in (data.train, data.validation)]
    assert not asked[0] & asked[1]
