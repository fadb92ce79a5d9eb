"""Two processes train as one does, DDP and FSDP.

Broken by: processes that drift apart after a phase begins, a step over other conversations than a single process
takes, frozen tensors that move, a part of the optimizer's state lost between phases or by a kill, a failure of one
process that the others wait for.
"""

import json
import os
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from signal import SIGKILL

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from transformers import AutoModelForCausalLM

from moe_lab.cli.main import main
from moe_lab.config.catalog import resource_folder
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.phases import SCHEDULES
from moe_lab.methods.finetune_freeze.trainer import Order
from moe_lab.methods.tokenized import EMPTY
from moe_lab.methods.trained import COMPLETE
from moe_lab.metrics.training_metrics import read_measurements
from tests.support.command import run_command
from tests.support.models import make_tokenizer, small_model
from tests.support.once import made_once
from tests.support.ranks import fork_ranks
from tests.support.trainings import names_by_group
from tests.support.two_processes import FSDP, all_by_two, by_one, by_two

WRAPS = ("ddp", "fsdp")
KILLED = {"schedule": "router-none", "router_aux_loss_coef": 0.01, "save_steps": 2}
"""A training that is killed in its second phase, and the same one whole."""
TRAININGS = {schedule: {"schedule": schedule} for schedule in SCHEDULES} | {"router-none": KILLED}
"""All nine: `experts-router`, for example, freezes what had moments, and thaws what had none."""
AUXILIARY = {"held_out": 0, "epochs": 1, "schedule": "none", "router_aux_loss_coef": 0.1}
COUNTS = (9, 11)
"""Rows of trainings with the auxiliary loss."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "olmoe"
    small_model("olmoe").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=WRAPS)
def shared(request, model, tmp_path_factory) -> tuple[str, Path]:
    """(wrap, a folder with one training for each schedule and count, ...): one launch for all that no kill ends."""

    def train(folder: Path) -> None:
        trainings = {folder / schedule: settings for schedule, settings in TRAININGS.items()}
        trainings |= {folder / str(count): AUXILIARY | {"count": count} for count in COUNTS}
        trainings |= {folder / "poisoned": {"poison": 2}}
        assert all_by_two(request.param, model, trainings) == [0, 0]

    return request.param, made_once(tmp_path_factory, f"finetuned-{request.param}", train)


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    """A function of settings: the same training by one process, once for both wraps; (its folder, weights by step)."""

    @cache
    def train(**settings) -> tuple[Path, dict[int, dict[str, torch.Tensor]]]:
        folder = tmp_path_factory.mktemp("one")
        return folder, by_one(model, folder, **settings)

    return train


def held_after(folder: Path, step: int) -> tuple[dict[str, torch.Tensor], set[str], bool]:
    """Weights after a phase, of which parameters there are moments, whether the model was split: the same in both."""
    (one, moments, split), other = (
        torch.load(folder / f"step{step}.rank{rank}.pt") for rank in (0, 1)
    )
    assert other[1:] == [moments, split]
    for name, value in one.items():
        assert value.numpy().tobytes() == other[0][name].numpy().tobytes(), name
    return one, moments, split


@pytest.mark.parametrize("rows, share", [(11, 4), (12, 4), (1, 6)])
def test_an_order_is_the_same_for_any_number_of_processes(rows, share):
    for epoch in (0, 1):
        alone, shared = (list(Order(rows, by, 5, partial(int, epoch))) for by in (1, share))
        assert sorted(alone) == list(range(rows)) and len(shared) % share == 0
        assert shared == alone + [EMPTY] * (len(shared) - rows) and len(shared) - rows < share
    orders = {
        (seed, epoch): tuple(Order(9, 1, seed, partial(int, epoch)))
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(set(orders.values())) == 16, (
        "the second epoch of seed 0 is not the first one of seed 1"
    )


def test_accelerate_reads_the_configuration():
    read = load_config_from_file(str(resource_folder("conf") / "accelerate" / "fsdp.yaml"))
    assert read.distributed_type.value == "FSDP" and read.fsdp_config["fsdp_version"] == 2


def test_more_processes_are_more_passes_of_a_step(monkeypatch):
    two_passes = FinetuneConfig(batch_size=1, gradient_accumulation=2)
    four_passes = FinetuneConfig(batch_size=1, gradient_accumulation=4)
    recipe_of_one_process = four_passes.recipe()
    assert four_passes.steps(16) == 12
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert two_passes.recipe() == recipe_of_one_process
    assert four_passes.steps(16) == 6


@pytest.mark.slow
@pytest.mark.parametrize("schedule", TRAININGS)
def test_two_processes_are_equal_to_each_other_and_train_as_one(schedule, shared, alone):
    wrap, two = shared[0], shared[1] / schedule
    folder, weights = alone(**TRAININGS[schedule])
    loaded = small_model("olmoe")
    groups = names_by_group(loaded)
    names = set().union(*groups.values())
    before = loaded.state_dict()
    parts = schedule.split("-")
    for part, step in zip(parts, (3, 6)[-len(parts) :], strict=True):
        after, moments, split = held_after(two, step)
        frozen = groups.get(part, set())
        assert moments == names - frozen and split == (wrap == "fsdp")
        for name, value in after.items():
            torch.testing.assert_close(value, weights[step][name], atol=1e-5, rtol=0)
            assert torch.equal(value, before[name]) == (name in frozen or name not in names), name
        before = after
    lines = [json.loads((x / "log.jsonl").read_text().splitlines()[-1]) for x in (folder, two)]
    assert lines[1]["validation_loss"] == pytest.approx(lines[0]["validation_loss"], abs=1e-5)


@pytest.mark.slow
def test_two_processes_measure_experts_as_one_does(shared, alone):
    by_one, by_both = map(read_measurements, (alone(**KILLED)[0], shared[1] / "router-none"))
    assert [line["step"] for line in by_both] == [0, 3, 6]
    for one, two in zip(by_one, by_both, strict=True):
        assert all(one[key] == two[key] for key in ("step", "tokens", "answer_tokens"))
        for metric in ("load_balance", "collaboration", "accuracy", "specialization"):
            assert two[metric]["value"] == pytest.approx(one[metric]["value"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_the_auxiliary_loss_counts_no_empty_passes(count, shared, alone):
    """9 rows: the last step has a pass with half a batch in one process, and an empty one in the other."""
    two = shared[1] / str(count)
    folder, weights = alone(count=count, **AUXILIARY)
    for name, value in held_after(two, 3)[0].items():
        torch.testing.assert_close(value, weights[6][name], atol=1e-5, rtol=0)
    logs = [(each / "log.jsonl").read_text().splitlines() for each in (folder, two)]
    for one, two in zip(*logs, strict=True):
        assert json.loads(two)["aux_loss"] == pytest.approx(json.loads(one)["aux_loss"], abs=1e-4)


def logged_losses(folder: Path) -> list[float]:
    losses = []
    for text in (folder / "log.jsonl").read_text().splitlines():
        line = json.loads(text)
        if "loss" in line:
            losses.append(line["loss"])
    return losses


@pytest.mark.slow
def test_killed_in_the_second_phase_it_ends_in_the_same_bytes(shared, model, tmp_path):
    wrap, trainings = shared
    survivor, killed = by_two(wrap, model, tmp_path, die=4, **KILLED)
    assert killed == -SIGKILL
    assert survivor != 0, "the other process fails with it, or is killed in turn"
    assert (tmp_path / "checkpoints" / "checkpoint-4").exists()
    assert by_two(wrap, model, tmp_path, **KILLED) == [0, 0]

    without_kill = trainings / "router-none"
    weights, *_ = held_after(tmp_path, 6)
    expected_weights, *_ = held_after(without_kill, 6)
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name
    assert logged_losses(tmp_path) == logged_losses(without_kill)


@pytest.mark.slow
def test_a_loss_of_one_process_that_is_no_number_stops_both(shared):
    told = {(shared[1] / "poisoned" / f"error.rank{rank}").read_text() for rank in (0, 1)}
    assert len(told) == 1 and "The loss of training step 3 is nan" in told.pop()


@pytest.mark.slow
def test_the_command_by_accelerate_with_fsdp(tmp_path, capsys):
    """One process reports; the folder is a model like any other; another number of processes does not continue it."""
    config = resource_folder("conf") / "accelerate" / "fsdp.yaml"
    launch = f"-m accelerate.commands.accelerate_cli launch --config_file {config} -m moe_lab"
    keys = "method=finetune-freeze method.schedule=none-router method.max_steps=2 method.dataset_size=16".split()
    keys += "method.validation_size=0 method.save_steps=1 method.compare_with_full=false".split()
    keys += f"task=toy_choice limit=4 device=cpu output_dir={tmp_path}".split()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, *launch.split(), *keys]
    first = subprocess.run(
        argv, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("results.json") == 1
    [record] = tmp_path.glob("models/*/training.json")
    told = json.loads(record.read_text())
    assert (
        told["processes"] == 2 and told["sharded"] and told["recipe"]["gradient_accumulation"] == 2
    )
    assert AutoModelForCausalLM.from_pretrained(record.parent / "model").config.use_cache
    log = tmp_path / "ranks.log"
    assert fork_ranks(main, keys, log=log, **FSDP) == [0, 0], "what is stored is shown"

    whole = record.parent / "checkpoints" / "checkpoint-1" / COMPLETE
    whole.parent.mkdir(parents=True)
    whole.touch()
    record.unlink()
    alone = run_command(capsys, *keys, "rerun=true", "method.gradient_accumulation=2")
    assert alone.code == 2 and "processes=2" in alone.err, alone.err
