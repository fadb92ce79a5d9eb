"""Two processes train as one does, DDP and FSDP.

Broken by: processes that drift apart after a phase begins, a step over other conversations than a
single process takes, frozen tensors that move, a part of the optimizer's state lost between phases
or by a kill, a failure of one process that the others wait for.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple

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


class Launch(NamedTuple):
    """Trainings in two processes: a folder for each schedule, each of COUNTS and "poisoned"."""

    wrap: str
    folder: Path


@pytest.fixture(scope="module", params=WRAPS)
def launch(request, model, tmp_path_factory) -> Launch:
    """One launch for all trainings that no kill ends."""

    def train(folder: Path) -> None:
        trainings = {}
        for schedule, settings in TRAININGS.items():
            trainings[folder / schedule] = settings
        for count in COUNTS:
            trainings[folder / str(count)] = AUXILIARY | {"count": count}
        trainings[folder / "poisoned"] = {"poison": 2}
        assert all_by_two(request.param, model, trainings) == [0, 0]

    return Launch(request.param, made_once(tmp_path_factory, f"finetuned-{request.param}", train))


class Alone(NamedTuple):
    """A training by one process."""

    folder: Path
    weights: dict[int, dict[str, torch.Tensor]]
    """By step."""


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory) -> Callable[..., Alone]:
    """A function of settings, which trains once for both wraps."""

    @cache
    def train(**settings: Any) -> Alone:
        folder = tmp_path_factory.mktemp("one")
        return Alone(folder, by_one(model, folder, **settings))

    return train


class AfterPhase(NamedTuple):
    """What a process holds after a phase."""

    weights: dict[str, torch.Tensor]
    moments: set[str]
    """The parameters of which the optimizer holds moments."""
    is_split: bool


def after_phase(folder: Path, step: int) -> AfterPhase:
    """What process 0 holds, which is the same as what process 1 does."""
    first = AfterPhase(*torch.load(folder / f"step{step}.rank0.pt"))
    second = AfterPhase(*torch.load(folder / f"step{step}.rank1.pt"))
    assert first.moments == second.moments
    assert first.is_split == second.is_split
    for name, tensor in first.weights.items():
        assert tensor.numpy().tobytes() == second.weights[name].numpy().tobytes(), name
    return first


def log_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


# Parts of a launch


@pytest.mark.parametrize(("rows", "share"), [(11, 4), (12, 4), (1, 6)])
@pytest.mark.parametrize("epoch", [0, 1])
def test_an_order_is_the_same_for_any_number_of_processes(rows, share, epoch):
    """It is filled up to a multiple of the rows that all processes take at once."""
    of_one = list(Order(rows, 1, 5, partial(int, epoch)))
    of_many = list(Order(rows, share, 5, partial(int, epoch)))
    filled = len(of_many) - rows
    assert sorted(of_one) == list(range(rows))
    assert len(of_many) % share == 0
    assert filled < share
    assert of_many == of_one + [EMPTY] * filled


def test_each_seed_and_epoch_has_an_order_of_its_own():
    """The second epoch of seed 0 is not the first one of seed 1."""
    orders = set()
    for seed in range(4):
        for epoch in range(4):
            orders.add(tuple(Order(9, 1, seed, partial(int, epoch))))
    assert len(orders) == 16


def test_accelerate_reads_the_configuration():
    file = resource_folder("conf") / "accelerate" / "fsdp.yaml"
    config = load_config_from_file(str(file))
    assert config.distributed_type.value == "FSDP"
    assert config.fsdp_config["fsdp_version"] == 2


def test_more_processes_are_more_passes_of_a_step(monkeypatch):
    two_passes = FinetuneConfig(batch_size=1, gradient_accumulation=2)
    four_passes = FinetuneConfig(batch_size=1, gradient_accumulation=4)
    recipe_of_one_process = four_passes.recipe()
    assert four_passes.steps(16) == 12
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert two_passes.recipe() == recipe_of_one_process
    assert four_passes.steps(16) == 6


# Two processes against one


@pytest.mark.slow
@pytest.mark.parametrize("schedule", TRAININGS)
def test_two_processes_are_equal_to_each_other_and_train_as_one(schedule, launch, alone):
    folder = launch.folder / schedule
    one_process = alone(**TRAININGS[schedule])
    model = small_model("olmoe")
    groups = names_by_group(model)
    parameters: set[str] = set()
    for group in groups.values():
        parameters |= group

    before = model.state_dict()
    phases = schedule.split("-")
    last_steps = [6] if len(phases) == 1 else [3, 6]
    for phase, step in zip(phases, last_steps, strict=True):
        frozen = groups.get(phase, set())
        after = after_phase(folder, step)
        assert after.moments == parameters - frozen
        assert after.is_split == (launch.wrap == "fsdp")
        for name, tensor in after.weights.items():
            expected = one_process.weights[step][name]
            torch.testing.assert_close(tensor, expected, atol=1e-5, rtol=0)
            is_trained = name in parameters and name not in frozen
            assert torch.equal(tensor, before[name]) != is_trained, name
        before = after.weights

    loss = log_lines(folder)[-1]["validation_loss"]
    expected_loss = log_lines(one_process.folder)[-1]["validation_loss"]
    assert loss == pytest.approx(expected_loss, abs=1e-5)


@pytest.mark.slow
def test_two_processes_measure_experts_as_one_does(launch, alone):
    expected_lines = read_measurements(alone(**KILLED).folder)
    lines = read_measurements(launch.folder / "router-none")
    assert [line["step"] for line in lines] == [0, 3, 6]
    for line, expected in zip(lines, expected_lines, strict=True):
        for key in ("step", "tokens", "answer_tokens"):
            assert line[key] == expected[key]
        for metric in ("load_balance", "collaboration", "accuracy", "specialization"):
            assert line[metric]["value"] == pytest.approx(expected[metric]["value"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_the_auxiliary_loss_counts_no_empty_passes(count, launch, alone):
    """The last step of 9 rows has half a batch in one process and an empty pass in the other."""
    folder = launch.folder / str(count)
    one_process = alone(count=count, **AUXILIARY)
    for name, tensor in after_phase(folder, 3).weights.items():
        torch.testing.assert_close(tensor, one_process.weights[6][name], atol=1e-5, rtol=0)

    lines = log_lines(folder)
    expected_lines = log_lines(one_process.folder)
    for line, expected in zip(lines, expected_lines, strict=True):
        assert line["aux_loss"] == pytest.approx(expected["aux_loss"], abs=1e-4)


# Failures


def losses_in(folder: Path) -> list[float]:
    return [line["loss"] for line in log_lines(folder) if "loss" in line]


@pytest.mark.slow
def test_killed_in_the_second_phase_it_ends_in_the_same_bytes(launch, model, tmp_path):
    """The other process fails with it, or is killed in turn."""
    survivor, killed = by_two(launch.wrap, model, tmp_path, die=4, **KILLED)
    assert survivor != 0
    assert killed == -SIGKILL
    assert (tmp_path / "checkpoints" / "checkpoint-4").exists()

    assert by_two(launch.wrap, model, tmp_path, **KILLED) == [0, 0]
    uninterrupted = launch.folder / "router-none"
    weights = after_phase(tmp_path, 6).weights
    for name, expected in after_phase(uninterrupted, 6).weights.items():
        assert torch.equal(weights[name], expected), name
    assert losses_in(tmp_path) == losses_in(uninterrupted)


@pytest.mark.slow
def test_a_loss_of_one_process_that_is_no_number_stops_both(launch):
    first = (launch.folder / "poisoned" / "error.rank0").read_text()
    second = (launch.folder / "poisoned" / "error.rank1").read_text()
    assert "The loss of training step 3 is nan" in first
    assert second == first


# The command


def by_accelerate(overrides: list[str]) -> subprocess.CompletedProcess:
    """The command line in the two processes of `accelerate launch`."""
    config = resource_folder("conf") / "accelerate" / "fsdp.yaml"
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    command += ["--config_file", str(config), "-m", "moe_lab", *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.slow
def test_the_command_by_accelerate_with_fsdp(tmp_path, capsys):
    """One process reports, and the folder is a model like any other.

    Another number of processes does not continue the training.
    """
    overrides = [
        "method=finetune-freeze",
        "method.schedule=none-router",
        "method.max_steps=2",
        "method.dataset_size=16",
        "method.validation_size=0",
        "method.save_steps=1",
        "method.compare_with_full=false",
        "task=toy_choice",
        "limit=4",
        "device=cpu",
        f"output_dir={tmp_path}",
    ]
    ended = by_accelerate(overrides)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("results.json") == 1

    [record] = tmp_path.glob("models/*/training.json")
    training = json.loads(record.read_text())
    assert training["processes"] == 2
    assert training["sharded"]
    assert training["recipe"]["gradient_accumulation"] == 2
    assert AutoModelForCausalLM.from_pretrained(record.parent / "model").config.use_cache
    log = tmp_path / "ranks.log"
    assert fork_ranks(main, overrides, log=log, **FSDP) == [0, 0], "what is stored is shown"

    complete = record.parent / "checkpoints" / "checkpoint-1" / COMPLETE
    complete.parent.mkdir(parents=True)
    complete.touch()
    record.unlink()
    by_one_process = [*overrides, "rerun=true", "method.gradient_accumulation=2"]
    refused = run_command(capsys, *by_one_process)
    assert refused.code == 2, refused.err
    assert "processes=2" in refused.err
