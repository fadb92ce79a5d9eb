"""A pre-training as a whole: resumed, in two processes, its record and its leak.

The leak is what a model that is not causal gains by later tokens.

Broken by: noise, order or moments that a resume draws again, a line of the log that is written
twice, processes that take other rows than one does, counts of parameters with embeddings or idle
experts, short prefixes that count as information from later tokens, a causal model with a leak.
"""

import json
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, set_seed

from moe_lab.config.catalog import resource_folder
from moe_lab.config.schema import Config, ExpertsImplementation, ModelConfig
from moe_lab.methods.pretrain import leak as module
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.corpus import read_corpus, tokenizer_of
from moe_lab.methods.pretrain.design import architecture
from moe_lab.methods.pretrain.leak import leak
from moe_lab.methods.pretrain.packing import PackedRows, pack
from moe_lab.methods.pretrain.training import (
    learning_rate,
    parameters_of,
    train,
    train_together,
)
from moe_lab.methods.trained import last_checkpoint
from tests.support.once import made_once
from tests.support.pretrainings import design, pretrain_in_turn, rows, training_of
from tests.support.ranks import fork_ranks
from tests.support.routed_designs import made
from tests.support.tiers import first_fast
from tests.support.trainings import assert_same, interrupted

NOISE = {"routing_noise": 1.5}
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
ROWS = "55a403622026fee9"
WEIGHTS = (7102.1237, 0.00417524, -0.00018160, -0.0107005)
"""The sum of their sizes, and the first three."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", first_fast(("bias", "olmoe", "word-hash", "word"), 2))
def test_a_resumed_training_ends_in_the_same_bytes(kind, tmp_path):
    """Weights and log are the same, even with noise.

    The training was stopped in the step after a checkpoint, and then in the next step.
    """
    settings = KINDS[kind] | SAVED
    whole = train(training_of(tmp_path / "whole", **settings))
    cut = training_of(tmp_path / "cut", **settings)
    for step in (3, 4):
        with interrupted(step - 1, "gradient"):
            train(cut)
        assert last_checkpoint(cut.folder / "checkpoints").name == "checkpoint-2"
    resumed = train(cut)
    assert_same(whole.model.state_dict(), resumed.model.state_dict())
    log_of_whole = (tmp_path / "whole" / "log.jsonl").read_text()
    log_of_cut = (tmp_path / "cut" / "log.jsonl").read_text()
    assert log_of_cut == log_of_whole
    assert log_of_whole.count('"loss"') == 3


def test_the_speed_is_that_of_the_last_session(tmp_path, capsys):
    """Broken by tokens of an earlier session in its time."""
    cut = training_of(tmp_path, **SAVED | {"save_steps": 3})
    with interrupted(3, "gradient"):
        train(cut)
    _, info = train_together(cut)
    assert f"{cut.folder.name}: training, continuing at step 3 of 5\n" in capsys.readouterr().err
    session = info["last_session"]
    tokens_of_two_steps = 2 * 2 * 2 * 12
    assert session["tokens_per_second"] * session["seconds"] == pytest.approx(tokens_of_two_steps)


def test_a_training_that_was_done_but_not_written_ends_at_once(tmp_path):
    training = training_of(tmp_path, save_steps=3)
    model, info = train_together(training)
    model_again, info_again = train_together(training)
    assert_same(model.state_dict(), model_again.state_dict())
    assert info.pop("last_session")["tokens_per_second"] > 0
    assert info_again.pop("last_session")["tokens_per_second"] is None, "it trained nothing"
    assert info_again == info


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """A folder with a training by two processes for each of KINDS."""

    def make(folder: Path) -> None:
        trainings = {folder / kind: settings | SHARED for kind, settings in KINDS.items()}
        log = folder / "ranks.log"
        codes = fork_ranks(pretrain_in_turn, trainings, log=log)
        assert codes == [0, 0], log.read_text()

    return made_once(tmp_path_factory, "pretrained-by-two", make)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one_does(kind, two, tmp_path):
    """One process takes two passes a step, each of two processes takes one.

    Rows, noise and mean losses are the same.
    """
    by_one_process = train(training_of(tmp_path, **KINDS[kind], **SHARED))
    weights_of_rank_0 = torch.load(two / kind / "rank0.pt")
    weights_of_rank_1 = torch.load(two / kind / "rank1.pt")
    assert_same(weights_of_rank_0, weights_of_rank_1)
    for name, weight in by_one_process.model.state_dict().items():
        torch.testing.assert_close(weights_of_rank_0[name], weight, atol=1e-5, rtol=0, msg=name)
    for expected, line in zip(log_lines(tmp_path), log_lines(two / kind), strict=True):
        assert line.keys() == expected.keys()
        for key, value in expected.items():
            assert line[key] == pytest.approx(value, abs=2e-5), key


def log_lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_machine_begins_with_the_same_rows_and_weights():
    """The rows and weights are those of model=toy-rules and seed 0.

    If they change, the numbers of docs/effects.md have to be measured again.
    """
    file = resource_folder("conf") / "model" / "toy-rules.yaml"
    recipe = yaml.safe_load(file.read_text())["recipe"]
    short = PretrainConfig(**recipe | {"steps": 4})
    config = Config(method=short)
    corpus = read_corpus(config, short.dataset, None)
    tokenizer = tokenizer_of(config, corpus)
    taken, _ = pack(corpus, tokenizer, rows=short.rows, held_out=2, length=short.sequence_length)
    digest = sha256()
    order = PackedRows(taken, seed=0, count=short.rows)
    for index in range(len(order)):
        digest.update(order[index]["input_ids"].numpy().tobytes())
    assert digest.hexdigest()[:16] == ROWS

    set_seed(0)
    model = AutoModelForCausalLM.from_config(architecture(short, tokenizer), dtype=torch.float32)
    flat = [parameter.detach().flatten().double() for parameter in model.parameters()]
    weights = torch.cat(flat)
    # random numbers of a normal distribution differ in their last digits between CPUs
    assert weights.abs().sum().item() == pytest.approx(WEIGHTS[0], rel=1e-5)
    assert weights[:3].tolist() == pytest.approx(WEIGHTS[1:], abs=1e-6)


def test_the_learning_rate_rises_and_falls_to_a_tenth():
    recipe = design(steps=100, warmup_ratio=0.095)
    rates = [learning_rate(recipe, step) for step in range(101)]
    assert recipe.warmup_steps == 10
    assert rates[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == pytest.approx(0.1)
    for rate, next_rate in pairwise(rates[10:]):
        assert next_rate < rate
    assert learning_rate(design(steps=1, warmup_ratio=0.0), 0) == 1.0
    only_warmup = design(steps=1, warmup_ratio=0.1)
    assert learning_rate(only_warmup, 0) == 0.5, "one step of warm-up trains, too"


def test_the_steps_are_adamws_with_clipping_schedule_and_decay(tmp_path):
    """A plain loop from the seed's first weights ends in the same weights.

    Its AdamW has betas 0.9 and 0.95, clips at norm 1 and does not decay norms.
    """
    settings = {
        "backbone": "dense",
        "steps": 4,
        "warmup_ratio": 0.4,
        "weight_decay": 0.5,
        "learning_rate": 0.02,
    }
    training = training_of(tmp_path, count=5, seed=3, **settings)
    trained = train(training).model.state_dict()

    set_seed(3)
    config = architecture(training.design, training.tokenizer)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    norms = []
    matrices = []
    for name, parameter in model.named_parameters():
        if "norm" in name:
            norms.append(parameter)
        else:
            matrices.append(parameter)
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.5}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    packed = PackedRows(training.rows, seed=3, count=8)
    gradient_norms = []
    for step in range(4):
        ids = torch.stack([packed[2 * step + number]["input_ids"] for number in range(2)])
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradient_norms.append(gradient_norm.item())
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * learning_rate(training.design, step)
        optimizer.step()
    assert min(gradient_norms) > 1, "clipping counts"
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(trained[name], expected, atol=1e-5, rtol=0, msg=name)


def test_the_record_counts_what_was_trained(tmp_path):
    training = training_of(tmp_path, gradient_accumulation=2, steps=3, experts=6)
    model, info = train_together(training)
    tokens = 3 * 2 * 2 * 12
    assert info["steps"] == 3
    assert info["tokens"] == tokens
    assert info["leak"] is None
    assert info["processes"] == 1
    session = info["last_session"]
    assert session["tokens_per_second"] == pytest.approx(tokens / session["seconds"])
    assert 2**20 < session["peak_memory_bytes"] < 2**36

    attention = 4 * 32 * 32
    norms = 4 * 32  # two of the layer, one of queries and one of keys
    router = 6 * 32
    layer = attention + norms + router
    expert = 3 * 32 * 16
    last_norm = 32
    assert info["parameters"] == {
        "total": 2 * (layer + 6 * expert) + last_norm,
        "active": 2 * (layer + 2 * expert) + last_norm,
    }
    assert parameters_of(model) == info["parameters"]
    assert model.config.use_cache
    assert model.generation_config.eos_token_id == 256
    loss_line, _ = log_lines(tmp_path)
    assert info["first_loss"] == loss_line["loss"]
    assert info["last_loss"] == loss_line["loss"]


@pytest.mark.slow
def test_experts_are_computed_as_is_asked(tmp_path):
    """By each implementation of `model.experts_implementation`, those of this package included."""
    models = {}
    for name in get_args(ExpertsImplementation):
        training = training_of(tmp_path / name, steps=1)
        config = replace(training.config, model=ModelConfig(experts_implementation=name))
        models[name] = train(replace(training, config=config)).model
        assert models[name].config._experts_implementation == name
    expected = models["eager"].state_dict()
    for model in models.values():
        for name, weight in model.state_dict().items():
            torch.testing.assert_close(weight, expected[name], atol=1e-5, rtol=0)


def losses_by_single_passes(model, row, other_row, position: int) -> list[float]:
    """The three losses of the target at `position` of a row.

    The model reads the whole row, the row with the later tokens of another row, and the prefix.
    """
    prefix = row[:position]
    with_another_rows_tokens = torch.cat([prefix, other_row[position:]])
    losses = []
    for ids in (row, with_another_rows_tokens, prefix):
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, position - 1]
        losses.append(torch.nn.functional.cross_entropy(logits, row[position]).item())
    return losses


@pytest.mark.parametrize("most, positions", [(128, range(1, 9)), (3, (1, 4, 8))])
def test_its_parts_are_those_of_passes_over_each_row_alone(most, positions, monkeypatch):
    """The targets are all of a row, or evenly spaced ones, of three rows of four.

    Each target has a logit in each pass.
    """
    monkeypatch.setattr(module, "POSITIONS", most)
    monkeypatch.setattr(module, "ROWS", 3)
    held_out = rows(4, 9, seed=5)
    model = made("expert").train()
    positions_of_passes = []

    def count_positions(head, args, logits) -> None:
        positions_of_passes.append(logits.shape[1])

    with model.lm_head.register_forward_hook(count_positions):
        result = leak(model, held_out)
    assert sum(positions_of_passes) == 3 * len(positions)
    assert not model.training

    all_losses = []
    for number in range(3):
        row = torch.from_numpy(held_out[number]).long()
        next_row = torch.from_numpy(held_out[(number + 1) % 3]).long()
        for position in positions:
            all_losses.append(losses_by_single_passes(model, row, next_row, position))
    whole, replaced, short = torch.tensor(all_losses).mean(0).tolist()
    assert result["rows"] == 3
    assert result["positions"] == len(positions)
    assert result["loss_with_later_tokens"] == pytest.approx(whole, abs=1e-5)
    assert result["loss_with_another_rows"] == pytest.approx(replaced, abs=1e-5)
    assert result["loss_without"] == pytest.approx(short, abs=1e-5)
    assert result["later_tokens"]["difference"] == pytest.approx(replaced - whole, abs=1e-5)
    assert result["short_prefixes"]["difference"] == pytest.approx(short - replaced, abs=1e-5)
    for part in (result, result["later_tokens"], result["short_prefixes"]):
        low, high = part["ci95"]
        assert low <= part["difference"] <= high
