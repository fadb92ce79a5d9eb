"""A pre-training as a whole: resumed, in two processes, and its record.

Broken by: noise, order or moments that a resume draws anew, a line of the log that stands twice, processes that take
other rows than one does or wait for one that failed, counts of parameters with embeddings or idle experts.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL

import pytest
import torch
from transformers import AutoModelForCausalLM, set_seed

from moe_lab.config.schema import EXPERTS_IMPLEMENTATIONS, ModelConfig
from moe_lab.methods.checkpoints import last_checkpoint
from moe_lab.methods.pretrain.packing import PackedRows
from moe_lab.methods.pretrain.trainer import PretrainTrainer
from moe_lab.methods.pretrain.training import (
    learning_rate,
    new_architecture,
    parameters_of,
    train,
    train_together,
)
from tests.support.once import made_once
from tests.support.pretraining_ranks import pretrain_in_turn
from tests.support.pretrainings import design, training_of
from tests.support.ranks import fork_ranks

NOISE = {"routing_noise": 1.5, "routing_noise_schedule": "linear"}
NOISY = NOISE | {"device_loss": 0.1}
SAVED = {"steps": 5, "save_steps": 2, "gradient_accumulation": 2, "count": 7}
"""Two epochs and a half, with a checkpoint in the middle of one."""
KINDS = {
    "olmoe": NOISY,
    "deepseek": {"backbone": "deepseek", "experts": 3, "experts_per_token": 1, "shared_experts": 1},
    "dense": {"backbone": "dense"},
    "bias": {"bias_rate": 0.01, "experts": 7, "experts_per_token": 1, "shared_experts": 1} | NOISE,
    "word": {"router": "word"},
    "word-hash": {"router": "word-hash"},
    "expert": {"router": "expert"},
}

SHARED = {"gradient_accumulation": 2, "count": 7}


def interrupted(training, step: int, monkeypatch) -> None:
    """Train up to the gradient of a step."""
    check = PretrainTrainer._check

    def fail(self, value, what, at):
        check(self, value, what, at)
        if (what, at) == ("gradient", step):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PretrainTrainer, "_check", fail)
        train(training)


def assert_same(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.numpy().tobytes() == other[name].numpy().tobytes(), name


@pytest.mark.parametrize("kind", ("olmoe", "bias", "word-hash", pytest.param("word", marks=pytest.mark.slow)))
def test_a_resumed_training_ends_in_the_same_bytes(kind, tmp_path, monkeypatch):
    """Weights and log, with noise; it was stopped in the step after a checkpoint, and in the next one."""
    settings = KINDS[kind] | SAVED
    whole = train(training_of(tmp_path / "whole", **settings))
    cut = training_of(tmp_path / "cut", **settings)
    for step in (3, 4):
        interrupted(cut, step, monkeypatch)
        assert last_checkpoint(cut.folder / "checkpoints").name == "checkpoint-2"
    resumed = train(cut)
    assert_same(whole.model.state_dict(), resumed.model.state_dict())
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1] and logs[0].count('"loss"') == 3


def test_a_checkpoint_that_lost_a_file_is_not_resumed_from(tmp_path, monkeypatch):
    """transformers' Trainer would go on with fresh moments, and end in other weights."""
    settings = SAVED | {"save_steps": 1}
    whole = train(training_of(tmp_path / "whole", **settings))
    cut = training_of(tmp_path / "cut", **settings)
    interrupted(cut, 4, monkeypatch)
    (cut.folder / "checkpoints" / "checkpoint-3" / "scheduler.pt").unlink()
    assert_same(whole.model.state_dict(), train(cut).model.state_dict())


def test_the_speed_is_that_of_the_last_session(tmp_path, monkeypatch):
    """Broken by tokens of an earlier session in its time."""
    cut = training_of(tmp_path, **SAVED | {"save_steps": 3})
    interrupted(cut, 4, monkeypatch)
    session = train_together(cut)[1]["last_session"]
    assert session["tokens_per_second"] * session["seconds"] == pytest.approx(2 * 2 * 2 * 12)


def train_until(folder: Path, last: int) -> None:
    """Train; SIGKILL in step `last`, after its gradient."""
    check = PretrainTrainer._check

    def die(self, value, what, step):
        check(self, value, what, step)
        if (what, step) == ("gradient", last):
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    PretrainTrainer._check = die
    model = train(training_of(folder, **KINDS["bias"], **SAVED | {"save_steps": 1})).model
    torch.save(model.state_dict(), folder / "weights.pt")


@pytest.mark.slow
def test_killed_twice_it_ends_in_the_same_bytes(tmp_path):
    def run(name: str, last: int) -> int | None:
        child = multiprocessing.get_context("fork").Process(target=train_until, args=(tmp_path / name, last))
        child.start()
        child.join(120)
        return child.exitcode

    assert run("whole", -1) == 0
    assert [run("killed", last) for last in (2, 4)] == [-SIGKILL, -SIGKILL]
    assert run("killed", -1) == 0
    assert_same(*(torch.load(tmp_path / name / "weights.pt") for name in ("whole", "killed")))
    whole, killed = ((tmp_path / name / "log.jsonl").read_text() for name in ("whole", "killed"))
    assert whole == killed


def test_a_training_that_was_done_but_not_written_ends_at_once(tmp_path):
    training = training_of(tmp_path, save_steps=3)
    first, told = train_together(training)
    again, retold = train_together(training)
    assert_same(first.state_dict(), again.state_dict())
    assert told.pop("last_session")["tokens_per_second"] > 0
    assert retold.pop("last_session")["tokens_per_second"] is None, "it trained nothing"
    assert told == retold


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """A folder with a training by two processes for each of KINDS, and one whose loss is no number in one of them."""

    def make(folder: Path) -> None:
        trainings = {folder / kind: settings | SHARED for kind, settings in KINDS.items()}
        # 2 layers and a pass a step in each process: the third step's first one
        trainings[folder / "poisoned"] = SHARED | {"poison": 4, "save_steps": 1}
        log = folder / "ranks.log"
        assert fork_ranks(pretrain_in_turn, trainings, log=log) == [0, 0], log.read_text()

    return made_once(tmp_path_factory, "pretrained-by-two", make)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one_does(kind, two, tmp_path):
    """One process takes two passes a step, two processes one each: the same rows, noise and mean losses."""
    one = train(training_of(tmp_path, **KINDS[kind], **SHARED))
    ranks = [torch.load(two / kind / f"rank{rank}.pt") for rank in (0, 1)]
    assert_same(*ranks)
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(ranks[0][name], value, atol=1e-5, rtol=0, msg=name)
    logs = [
        [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in (tmp_path, two / kind)
    ]
    assert [line.keys() for line in logs[0]] == [line.keys() for line in logs[1]]
    for mine, other in zip(*logs, strict=True):
        for key, value in mine.items():
            assert other[key] == pytest.approx(value, abs=2e-5), key


@pytest.mark.slow
def test_a_loss_of_one_process_that_is_no_number_stops_both(two):
    told = {(two / "poisoned" / f"error.rank{rank}").read_text() for rank in (0, 1)}
    assert len(told) == 1 and "The loss of training step 3 is nan. The last checkpoint is kept." in told.pop()
    assert last_checkpoint(two / "poisoned" / "checkpoints").name == "checkpoint-2"


def test_the_learning_rate_rises_and_falls_to_a_tenth():
    recipe = design(steps=100, warmup_ratio=0.095)
    rates = [learning_rate(recipe, step) for step in range(101)]
    assert recipe.warmup_steps == 10
    assert rates[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert rates[10] == 1.0 and rates[55] == pytest.approx(0.55) and rates[100] == pytest.approx(0.1)
    assert all(one > other for one, other in pairwise(rates[10:]))
    assert learning_rate(design(steps=1, warmup_ratio=0.0), 0) == 1.0


def test_the_steps_are_adamws_with_clipping_schedule_and_decay(tmp_path):
    """By a plain loop: betas 0.9 and 0.95, clipped at norm 1, no decay of norms; from the seed's own first weights."""
    settings = {
        "backbone": "dense",
        "steps": 4,
        "warmup_ratio": 0.4,
        "weight_decay": 0.5,
        "learning_rate": 0.02,
    }
    training = training_of(tmp_path, count=5, seed=3, **settings)
    found = train(training).model.state_dict()
    set_seed(3)
    model = AutoModelForCausalLM.from_config(new_architecture(training), dtype=torch.float32).train()
    norms = [own for name, own in model.named_parameters() if "norm" in name]
    others = [own for name, own in model.named_parameters() if "norm" not in name]
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.5}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    packed = PackedRows(training.rows, seed=3, count=8)
    sizes = []
    for step in range(4):
        ids = torch.stack([packed[2 * step + number]["input_ids"] for number in range(2)])
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        sizes.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * learning_rate(training.design, step)
        optimizer.step()
    assert min(sizes) > 1, "clipping counts"
    for name, own in model.state_dict().items():
        torch.testing.assert_close(found[name], own, atol=1e-5, rtol=0, msg=name)


def test_the_record_counts_what_was_trained(tmp_path):
    model, told = train_together(training_of(tmp_path, gradient_accumulation=2, steps=3, experts=6))
    assert (told["steps"], told["tokens"]) == (3, 3 * 2 * 2 * 12)
    assert told["leak"] is None and told["processes"] == 1
    session = told["last_session"]
    assert session["tokens_per_second"] == pytest.approx(144 / session["seconds"])
    assert 2**20 < session["peak_memory_bytes"] < 2**36
    attention, norms = 4 * 32 * 32, 4 * 32  # of the layer, of queries and keys
    layer = attention + norms + 6 * 32
    expert = 3 * 32 * 16
    assert told["parameters"] == {
        "total": 2 * (layer + 6 * expert) + 32,
        "active": 2 * (layer + 2 * expert) + 32,
    }
    assert parameters_of(model) == told["parameters"]
    assert model.config.use_cache and model.generation_config.eos_token_id == 256
    [line, _] = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert told["first_loss"] == told["last_loss"] == line["loss"]


def test_experts_are_computed_as_is_asked(tmp_path):
    """By each implementation of `model.experts_implementation`, those of this package included."""
    trained = {}
    for name in EXPERTS_IMPLEMENTATIONS:
        training = training_of(tmp_path / name, steps=1)
        model = ModelConfig(experts_implementation=name)
        trained[name] = train(replace(training, config=replace(training.config, model=model))).model
        assert trained[name].config._experts_implementation == name
    for model in trained.values():
        for mine, plain in zip(model.parameters(), trained["eager"].parameters(), strict=True):
            torch.testing.assert_close(mine, plain, atol=1e-5, rtol=0)


def test_bfloat16_computes_in_it_and_keeps_float32_weights(tmp_path):
    trained = {}
    for dtype in ("float32", "bfloat16"):
        trained[dtype] = train(training_of(tmp_path / dtype, dtype=dtype, routing_noise=1.0)).model
        assert {own.dtype for own in trained[dtype].parameters()} == {torch.float32}
    one, other = (model.lm_head.weight for model in trained.values())
    assert not torch.equal(one, other)
    torch.testing.assert_close(one, other, atol=2 * 4 * 3e-3, rtol=0, msg="four of Adam's steps each")
