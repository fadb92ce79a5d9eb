"""`method.trainer`: fields of transformers' TrainingArguments.

Broken by: a field that arrives and does nothing, a field that is neither taken nor refused, a
training that differs from that of the plain Trainer with the same fields, two spellings of one
setting with two ids, a field of logging in the recipe, a resumed training that has forgotten how
long the validation loss has not fallen.
"""

import json
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from transformers import Trainer, TrainingArguments

from moe_lab.config.schema import Config, LoggerConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.tokenized import Pad, Rows
from moe_lab.methods.trainer import check_fields, own_checkpoint, settings_of
from moe_lab.methods.training_arguments import ALIASES, NOT_WEIGHTS, REFUSED, TrainerConfig
from moe_lab.methods.training_memory import moment_bytes
from moe_lab.methods.virtual_tokens.method import SoftPrompt
from tests.support.command import run_command
from tests.support.models import small_model
from tests.support.trainings import assert_same, config_of, interrupted, rows, train, training_of

METHODS: tuple[type[TrainerConfig], ...] = (FinetuneConfig, PretrainConfig, SoftPrompt.Config)
VALUES: dict[str, Any] = {
    "activation_checkpointing": True,
    "activation_checkpointing_kwargs": {"use_reentrant": False},
    "adam_beta1": 0.8,
    "adam_beta2": 0.9,
    "adam_epsilon": 1e-6,
    "average_tokens_across_devices": False,
    "data_seed": 3,
    "dataloader_in_order": False,
    "dataloader_multiprocessing_context": "spawn",
    "dataloader_num_workers": 1,
    "dataloader_persistent_workers": True,
    "dataloader_pin_memory": False,
    "dataloader_prefetch_factor": 4,
    "ddp_broadcast_buffers": False,
    "ddp_bucket_cap_mb": 10,
    "ddp_static_graph": True,
    "debug": "underflow_overflow",
    "eval_delay": 2.0,
    "eval_on_start": True,
    "eval_steps": 2.0,
    "eval_strategy": "steps",
    "full_determinism": True,
    "gradient_accumulation_steps": 2,
    "hub_always_push": True,
    "hub_model_id": "me/it",
    "hub_private_repo": True,
    "hub_revision": "tried",
    "hub_strategy": "end",
    "include_num_input_tokens_seen": "all",
    "label_smoothing_factor": 0.1,
    "learning_rate": 1e-3,
    "load_best_model_at_end": True,
    "log_level": "error",
    "log_level_replica": "error",
    "log_on_each_node": False,
    "logging_first_step": True,
    "logging_steps": 5.0,
    "lr_scheduler_kwargs": {"num_cycles": 1.0},
    "lr_scheduler_type": "cosine",
    "max_grad_norm": 0.5,
    "max_steps": 7,
    "neftune_noise_alpha": 5.0,
    "num_train_epochs": 2,
    "optim": "adafactor",
    "optim_args": "momentum=0.9",
    "per_device_train_batch_size": 2,
    "project": "mine",
    "push_to_hub": True,
    "report_to": "wandb",
    "run_name": "mine",
    "save_on_each_node": True,
    "save_steps": 30,
    "save_total_limit": 3,
    "tf32": False,
    "torch_compile": True,
    "torch_compile_backend": "eager",
    "torch_compile_mode": "default",
    "torch_empty_cache_steps": 3,
    "trackio_bucket_id": "mine",
    "trackio_space_id": "mine",
    "trackio_static_space_id": "mine",
    "train_sampling_strategy": "group_by_length",
    "warmup_steps": 5.0,
    "weight_decay": 0.2,
}
"""A value of every field that some method takes and that is no second name of a key of the method.

`bf16` is a key of the run.
"""
UPLOAD = {"push_to_hub": True}
REPORT = {"report_to": "wandb"}
TOGETHER: dict[str, dict[str, Any]] = {
    "activation_checkpointing_kwargs": {"activation_checkpointing": True},
    "dataloader_in_order": {"dataloader_num_workers": 1},
    "dataloader_persistent_workers": {"dataloader_num_workers": 1},
    "dataloader_prefetch_factor": {"dataloader_num_workers": 1},
    "dataloader_multiprocessing_context": {"dataloader_num_workers": 1},
    "eval_delay": {"eval_strategy": "steps"},
    "eval_steps": {"eval_strategy": "steps"},
    "load_best_model_at_end": {"eval_strategy": "steps", "eval_steps": 5},
    "hub_always_push": UPLOAD,
    "hub_model_id": UPLOAD,
    "hub_private_repo": UPLOAD,
    "hub_revision": UPLOAD,
    "hub_strategy": UPLOAD,
    "lr_scheduler_kwargs": {"lr_scheduler_type": "cosine"},
    "project": REPORT,
    "run_name": REPORT,
    "trackio_bucket_id": REPORT,
    "trackio_space_id": REPORT,
    "trackio_static_space_id": REPORT,
}
"""Fields that another one has no effect without."""


def refused_by(method: type[TrainerConfig]) -> set[str]:
    return {*REFUSED, *method.refused_fields}


def test_every_field_of_transformers_is_taken_or_refused_with_a_reason():
    known = {field.name for field in fields(TrainingArguments)}
    of_methods = set()
    for method in METHODS:
        of_methods.update(method.refused_fields)
    assert set(VALUES) | set(REFUSED) | set(ALIASES) | {"bf16"} == known
    assert not set(VALUES) & set(REFUSED)
    assert of_methods <= set(VALUES)
    for method in METHODS:
        for reason in [*REFUSED.values(), *method.refused_fields.values()]:
            assert len(reason) > 15
    assert len(REFUSED) < len(known) / 2


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_a_refused_field_is_named_with_its_reason(method):
    for name in refused_by(method):
        with pytest.raises(ConfigError, match=f"method.trainer.{name} is not taken: "):
            method(trainer={name: VALUES.get(name, 1)})


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_every_other_field_arrives(method, tmp_path):
    """At the Trainer's settings, or as the key of the method that means the same."""
    for name in sorted(set(VALUES) - refused_by(method)):
        value = VALUES[name]
        given = {name: value, **TOGETHER.get(name, {})}
        config = Config(method=method(trainer=given), device="cpu")
        if name in method.same_keys:
            assert getattr(config.method, method.same_keys[name]) == value
            assert name not in config.method.trainer
            continue
        if name in ("eval_delay", "eval_steps", "eval_strategy", "tf32"):
            assert config.method.trainer[name] == value  # transformers wants a GPU for tf32
            continue
        settings = settings_of(tmp_path, config, steps=10, log_steps=1)
        arrived = getattr(settings, name)
        if name == "debug":
            arrived = arrived[0]
        if name == "report_to":
            [arrived] = arrived
        assert arrived == value, name


def test_one_process_trains_on_one_gpu_of_several(tmp_path, monkeypatch):
    """Broken by `torch.nn.DataParallel`, whose batch is as many times larger as there are GPUs."""

    def on_four_gpus(settings: TrainingArguments) -> torch.device:
        settings._n_gpu = 4
        return torch.device("cpu")

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(on_four_gpus))
    config = Config(method=FinetuneConfig(batch_size=3), device="cpu")
    settings = settings_of(tmp_path, config, steps=10, log_steps=1, per_device_train_batch_size=3)
    assert settings.n_gpu == 1
    assert settings.train_batch_size == 3


def test_the_fields_of_logging_and_uploading_are_not_part_of_the_recipe():
    recipe = FinetuneConfig().recipe()
    for name in sorted(set(VALUES) - set(FinetuneConfig.refused_fields)):
        given = {name: VALUES[name], **TOGETHER.get(name, {})}
        without = {key: value for key, value in given.items() if key != name}
        changed = FinetuneConfig(trainer=given).recipe() != FinetuneConfig(trainer=without).recipe()
        assert changed == (name not in NOT_WEIGHTS), name
    assert FinetuneConfig(trainer={"max_grad_norm": 1.0}).recipe() == recipe, "the default"


@pytest.mark.parametrize(
    ("field", "value", "key", "typed"),
    [
        ("optim", "adafactor", "optimizer", "adafactor"),
        ("num_train_epochs", 5, "epochs", 5),
        ("gradient_checkpointing", True, "activation_checkpointing", True),
        ("per_device_train_batch_size", 3, "batch_size", 3),
        ("warmup_steps", 0.25, "warmup_ratio", 0.25),
    ],
)
def test_a_field_and_the_key_that_means_the_same_are_one_training(field, value, key, typed):
    by_field = FinetuneConfig(trainer={field: value})
    assert by_field == FinetuneConfig(**{key: typed})
    assert FinetuneConfig(trainer={field: value}, **{key: typed}) == by_field
    other = {"optimizer": "sgd", "epochs": 4, "batch_size": 9, "warmup_ratio": 0.5}
    if key in other:
        with pytest.raises(ConfigError, match=f"trainer.{field}=.*method.{key}=.*same setting"):
            FinetuneConfig(trainer={field: value}, **{key: other[key]})


def test_steps_and_a_share_of_warm_up_are_not_given_together():
    assert FinetuneConfig(trainer={"warmup_steps": 5}).warmup_steps(400) == 5
    with pytest.raises(ConfigError, match=r"warmup_steps=5.*warmup_ratio=0.5.*same setting"):
        FinetuneConfig(trainer={"warmup_steps": 5}, warmup_ratio=0.5)


def test_a_default_that_is_typed_contradicts_a_field(tmp_path, capsys):
    command = ["method=finetune-freeze", "mode=plan", f"output_dir={tmp_path}"]
    typed = ["method.epochs=3", "method.trainer.num_train_epochs=2"]
    ended = run_command(capsys, *command, *typed)
    assert ended.code == 2
    assert "num_train_epochs=2 and method.epochs=3 are the same setting" in ended.err
    equal = ["method.epochs=2", "method.trainer.num_train_epochs=2"]
    assert run_command(capsys, *command, *equal).code == 0


def test_bf16_is_the_runs_dtype():
    method = FinetuneConfig(trainer={"bf16": True})
    assert Config(method=method).dtype == "bfloat16"
    assert Config(method=FinetuneConfig(trainer={"bf16": False})).dtype == "float32"
    with pytest.raises(ConfigError, match="bf16=true and dtype=float32 are the same setting"):
        Config(method=FinetuneConfig(trainer={"bf16": True}), dtype="float32")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optin": "sgd"}, "Unknown field method.trainer.optin. Did you mean 'optim'"),
        ({"lr_scheduler_type": "cosin"}, "Did you mean 'cosine'"),
        ({"lr_scheduler_type": "greedy"}, "no function of the step"),
        ({"lr_scheduler_kwargs": {"num_cycles": 1}}, "no effect without .*lr_scheduler_type"),
        ({"optim": "adamw"}, "method.optimizer=adamw is unknown"),
        ({"optim": "galore_adamw"}, "chooses the parameters itself"),
        ({"max_grad_norm": "x"}, "max_grad_norm=x: expected a number"),
        ({"train_sampling_strategy": "foo"}, "Choices: random, sequential, group_by_length"),
        ({"eval_steps": 3}, "no effect without method.trainer.eval_strategy=steps"),
        (
            {"gradient_checkpointing": True, "activation_checkpointing": False},
            "has gradient_checkpointing and activation_checkpointing, which are the same field",
        ),
        ({"optim": None}, "trainer.optim=null: expected text"),
        ({"optim": 5}, "method.optimizer=5 is unknown"),
        ({"lr_scheduler_type": None}, "expected linear | cosine"),
        (
            {"hub_model_id": "me/it"},
            "hub_model_id has no effect without method.trainer.push_to_hub",
        ),
        ({"run_name": "mine"}, "no effect without method.trainer.report_to"),
        ({"dataloader_persistent_workers": True}, "without method.trainer.dataloader_num_workers"),
        ({"activation_checkpointing_kwargs": {"use_reentrant": True}}, "no effect without"),
    ],
    ids=str,
)
def test_a_wrong_field_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        FinetuneConfig(trainer=given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"cycles": 1}}, "'cycles'"),
        ({"report_to": "paper"}, "paper is not supported"),
        ({"torch_empty_cache_steps": 0}, "bigger than 0"),
        ({"dataloader_prefetch_factor": 2}, "without method.trainer.dataloader_num_workers"),
        ({"optim": "schedule_free_adamw"}, "chooses the parameters itself"),
        ({"adam_beta1": 2.0}, "Invalid beta parameter"),
        ({"optim": "sgd", "adam_beta1": 0.5}, "adam_beta1 has no effect on optim=sgd"),
        ({"optim": "adafactor", "adam_epsilon": 1e-6}, "adam_epsilon has no effect"),
        ({"optim": "sgd", "optim_args": "momentum=0.9,speed=1"}, "speed=1 has no effect"),
    ],
    ids=str,
)
def test_transformers_refuses_before_weights_load(given, message):
    with pytest.raises(ConfigError, match=message):
        method = FinetuneConfig(trainer=given)
        check_fields(Config(method=method, device="cpu"), optim=method.optimizer)


def test_a_training_is_reported_to_one_run_of_wandb():
    """The second one of a process has no configuration that transformers could update."""
    method = FinetuneConfig(trainer={"report_to": "wandb"})
    check_fields(Config(method=method, device="cpu"))
    with pytest.raises(ConfigError, match="report_to=wandb and logger=wandb are two W&B runs"):
        check_fields(Config(method=method, device="cpu", logger=LoggerConfig(name="wandb")))


PLAIN: dict[str, Any] = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "weight_decay": 0.1,
    "learning_rate": 1e-2,
    "train_sampling_strategy": "sequential",
}
RECIPES: dict[str, dict[str, Any]] = {
    "cosine": {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 1.0}},
    "warm-up": {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 2},
    "betas": {"adam_beta1": 0.5, "adam_beta2": 0.6, "adam_epsilon": 1e-3, "max_grad_norm": 0.1},
    "momentum": {"optim": "sgd", "optim_args": "momentum=0.9", "max_grad_norm": 0},
    "adafactor": {"optim": "adafactor", "label_smoothing_factor": 0.2},
    "neftune": {"neftune_noise_alpha": 5.0, "optim": "rmsprop"},
}


@pytest.mark.slow
def test_each_training_is_a_run_of_wandb_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        train(deepcopy(small_model("olmoe")), tmp_path / name, count=4, trainer=REPORT)
        assert len(list((tmp_path / name).glob("wandb/offline-run-*"))) == 1
        assert wandb.run is None, "it has ended with the training"
    assert not (tmp_path / "wandb").exists()


@pytest.mark.slow
def test_a_stored_training_says_that_it_uploads_nothing(tmp_path, capsys):
    command = ["method=finetune-freeze", "method.max_steps=2", "method.dataset_size=8"]
    command += ["method.epochs=1", "task=toy_choice", "limit=2", f"output_dir={tmp_path}"]
    assert run_command(capsys, *command).code == 0
    ended = run_command(capsys, *command, "rerun=true", "method.trainer.push_to_hub=true")
    assert ended.code == 0
    assert "push_to_hub uploads nothing. hf upload <id> " in ended.err


@pytest.mark.parametrize("name", RECIPES)
def test_a_training_is_that_of_the_plain_trainer(name, tmp_path):
    given = RECIPES[name]
    trained = deepcopy(small_model("olmoe"))
    settings = {"count": 7, "epochs": 2, "gradient_accumulation": 2}
    if "warmup_steps" not in given:
        settings["warmup_ratio"] = 0.0
    in_order = {"train_sampling_strategy": "sequential"}
    train(trained, tmp_path / "ours", trainer=in_order | given, **settings)

    reference = deepcopy(small_model("olmoe"))
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "plain"),
        use_cpu=True,
        seed=0,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
        **({"optim": "adamw_torch"} | PLAIN | given),
    )
    Trainer(reference, arguments, data_collator=Pad(0), train_dataset=Rows(rows(7))).train()
    expected = reference.state_dict()
    for key, tensor in trained.state_dict().items():
        torch.testing.assert_close(tensor, expected[key], atol=2e-6, rtol=1e-5, msg=key)
    before = small_model("olmoe").state_dict()
    changed = [key for key, tensor in expected.items() if not torch.equal(tensor, before[key])]
    assert changed != []


def test_a_schedule_multiplies_the_rates_of_phases_and_routers(tmp_path):
    """Adam's steps are the learning rate in every entry with a gradient.

    The schedule is constant, without warm-up.
    """
    before = small_model("olmoe")
    after = deepcopy(before)
    train(
        after,
        tmp_path,
        count=2,
        weight_decay=0.0,
        warmup_ratio=0.0,
        router_lr=1e-5,
        phases=[{"lr": 1e-4}],
        trainer={"lr_scheduler_type": "constant"},
    )

    def largest_change(name: str) -> float:
        return (after.state_dict()[name] - before.state_dict()[name]).abs().max().item()

    router_change = largest_change("model.layers.1.mlp.gate.weight")
    expert_change = largest_change("model.layers.1.mlp.experts.down_proj")
    assert router_change == pytest.approx(1e-5, rel=0.05)
    assert expert_change == pytest.approx(1e-4, rel=0.05)


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_fields_of_logging_act(tmp_path):
    """12 rows in passes of 2 are 6 steps. A training of fewer than 10 steps logs the last one."""
    train(deepcopy(small_model("olmoe")), tmp_path / "plain", count=12)
    fields_of_logging = {
        "logging_first_step": True,
        "include_num_input_tokens_seen": "non_padding",
    }
    train(deepcopy(small_model("olmoe")), tmp_path / "given", count=12, trainer=fields_of_logging)
    assert [line["step"] for line in log_of(tmp_path / "plain")] == [6]
    log = log_of(tmp_path / "given")
    assert [line["step"] for line in log] == [1, 6]
    assert log[-1]["num_input_tokens_seen"] == sum(len(row.ids) for row in rows(12))


def test_fields_of_checkpoints_act(tmp_path):
    """Of 6 steps with a checkpoint each, the last 4 checkpoints are kept."""
    fields_of_checkpoints = {"save_total_limit": 4, "save_steps": 1}
    train(
        deepcopy(small_model("olmoe")),
        tmp_path,
        count=12,
        save_steps=1,
        trainer=fields_of_checkpoints,
    )
    kept = {path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")}
    assert kept == {"checkpoint-3", "checkpoint-4", "checkpoint-5", "checkpoint-6"}


def order_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **trainer: Any) -> list[int]:
    """The rows in the order of a training of one epoch."""
    numbers: list[int] = []
    getitem = Rows.__getitem__

    def record(self: Rows, number: int) -> Any:
        numbers.append(number)
        return getitem(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "__getitem__", record)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        train(deepcopy(small_model("olmoe")), folder, count=24, trainer=trainer)
    return numbers[-24:]


def equal_pairs(order: list[int]) -> int:
    """The number of passes (of two rows) whose rows are equally long."""
    lengths = [len(row.ids) for row in rows(24)]
    count = 0
    for first, second in zip(order[::2], order[1::2], strict=True):
        if lengths[first] == lengths[second]:
            count += 1
    return count


def test_the_order_of_rows_is_the_one_that_is_asked_for(tmp_path, monkeypatch):
    plain = order_of(tmp_path, monkeypatch)
    other_seed = order_of(tmp_path, monkeypatch, data_seed=7)
    grouped = order_of(tmp_path, monkeypatch, train_sampling_strategy="group_by_length")
    in_order = order_of(tmp_path, monkeypatch, train_sampling_strategy="sequential")
    assert in_order == list(range(24))
    for order in (plain, other_seed, grouped):
        assert sorted(order) == list(range(24))
    assert plain != other_seed
    assert equal_pairs(grouped) > equal_pairs(plain)
    lengths = [len(row.ids) for row in rows(24)]
    assert lengths[grouped[0]] == max(lengths), "the longest row first"


def test_the_planned_memory_is_the_state_of_each_optimizer():
    parameters = [torch.nn.Parameter(torch.empty(4, 8, 16)), torch.nn.Parameter(torch.empty(10))]
    numbers = 4 * 8 * 16 + 10
    assert moment_bytes(parameters, "sgd") == 0
    assert moment_bytes(parameters, "sgd", "momentum=0.9") == 4 * numbers
    assert moment_bytes(parameters, "adamw_torch") == 8 * numbers
    step = 4
    assert moment_bytes(parameters, "adagrad") == 4 * numbers + 2 * step
    rows_and_columns = 4 * 8 + 4 * 16
    rms = 4
    assert moment_bytes(parameters, "adafactor") == 4 * (rows_and_columns + 10) + 2 * rms
    assert moment_bytes(parameters, "adamw_torch_4bit") == 8 * numbers, "an upper bound"


# Early stopping


STOPPING = {"count": 4, "held_out": 3, "epochs": 6, "learning_rate": 0.1}


def losses_of(training_info: dict[str, Any]) -> list[float]:
    return [line["loss"] for line in training_info["validation"]["losses"]]


def test_it_stops_where_the_validation_loss_has_not_fallen(tmp_path):
    model = deepcopy(small_model("olmoe"))
    whole = losses_of(train(model, tmp_path / "whole", **STOPPING))
    best = whole[0]
    waited = 0
    expected = []
    for loss in whole:
        expected.append(loss)
        is_first = len(expected) == 1
        if is_first or loss < best:
            waited = 0
        else:
            waited += 1
        best = min(best, loss)
        if waited == 2:
            break
    assert len(expected) < len(whole), "the case needs a training that gets worse"

    stopping = {"early_stopping": {"early_stopping_patience": 2}}
    stopped = deepcopy(small_model("olmoe"))
    info = train(stopped, tmp_path / "stopped", **STOPPING, **stopping)
    assert losses_of(info) == expected
    assert info["weights_of_step"] == 2 * len(expected)

    again, info_again = train_again(tmp_path / "stopped", **STOPPING, **stopping)
    assert info_again == info, "done, but not written: nothing is trained"
    assert_same(stopped, again)


def train_again(folder: Path, **settings: Any) -> tuple[Any, dict[str, Any]]:
    from moe_lab.methods.finetune_freeze.training import finetune

    return finetune(training_of(folder, **settings), deepcopy(small_model("olmoe")))


def test_a_resumed_training_has_waited_as_long(tmp_path):
    settings: dict[str, Any] = STOPPING | {
        "early_stopping": {"early_stopping_patience": 2},
        "save_steps": 1,
    }
    expected = deepcopy(small_model("olmoe"))
    info = train(expected, tmp_path / "whole", **settings)
    with interrupted(info["weights_of_step"] - 1):
        train(deepcopy(small_model("olmoe")), tmp_path / "cut", **settings)
    resumed = deepcopy(small_model("olmoe"))
    assert train(resumed, tmp_path / "cut", **settings) == info
    assert_same(expected, resumed)


@pytest.mark.parametrize("save_steps", [1, 12])
def test_the_best_step_of_the_validation_is_kept(save_steps, tmp_path):
    """Also where no other checkpoint would have been written at that step."""
    trainer = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    best_model = deepcopy(small_model("olmoe"))
    settings = STOPPING | {"save_steps": save_steps, "trainer": trainer}
    info = train(best_model, tmp_path / "best", **settings)
    losses = losses_of(info)
    best_step = losses.index(min(losses)) + 1
    assert len(losses) == 12
    assert 0 < best_step < 12
    assert info["weights_of_step"] == best_step
    checkpoint = tmp_path / "best" / "checkpoints" / f"checkpoint-{best_step}"
    assert_same(best_model, own_checkpoint(checkpoint))
    again, info_again = train_again(tmp_path / "best", **settings)
    assert info_again == info
    assert_same(best_model, again)
    with interrupted(best_step + 1):
        train(deepcopy(small_model("olmoe")), tmp_path / "cut", **settings)
    resumed = deepcopy(small_model("olmoe"))
    assert train(resumed, tmp_path / "cut", **settings) == info
    assert_same(best_model, resumed)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"patience": 1}, "early_stopping.patience"),
        ({"early_stopping_patience": 0}, "at least 1"),
        ({"early_stopping_threshold": None}, "threshold=null: expected a number"),
        ({"early_stopping_patience": 1}, "validation_size"),
    ],
    ids=str,
)
def test_early_stopping_that_cannot_act_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        FinetuneConfig(early_stopping=given, validation_size=0)


def test_an_unused_door_leaves_the_recipes_as_they_are():
    assert "trainer" not in FinetuneConfig().recipe()
    assert "early_stopping" not in FinetuneConfig().recipe()
    assert "trainer" not in PretrainConfig().recipe()
    assert config_of().method.trainer == {}
