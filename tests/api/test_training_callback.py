"""`moe_lab.ExpertMetrics`: expert metrics of any training, in its own log.

Broken by: padding that is counted, layers that are counted again under gradient checkpointing,
tokens of an evaluation, counts of an earlier window, values that do not reach report_to, a training
that goes on otherwise, hooks that stay.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import moe_lab
from moe_lab.api import training_callback
from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods.tokenized import Pad, Rows
from moe_lab.metrics.training_metrics import measure
from tests.support.models import small_model
from tests.support.trainings import assert_same, rows


def trained(
    model: Any, folder: Path, *callbacks: TrainerCallback, **arguments: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """A plain training of 8 rows of 8 to 10 tokens, padded in batches of 2; its log."""
    settings = {"learning_rate": 1e-2, "report_to": [], "num_train_epochs": 1} | arguments
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=2,
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            remove_unused_columns=False,
            **settings,
        ),
        train_dataset=Rows(rows(8)),
        data_collator=Pad(0),
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer, trainer.state.log_history


def expert_lines(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = []
    for line in log:
        names = [name for name in line if name.startswith("expert/")]
        if names:
            lines.append(line)
    return lines


def entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


@pytest.mark.parametrize(
    ("family", "checkpointing"),
    [("olmoe", False), ("olmoe", True), ("mixtral", False), ("gpt_oss", False)],
)
def test_the_tokens_of_the_training_batches_are_counted(family, checkpointing, tmp_path):
    """The learning rate is 0. So the same model routes every batch, and a loop counts it."""
    model = deepcopy(small_model(family))
    callback = moe_lab.ExpertMetrics(every=4)
    _, log = trained(
        model, tmp_path, callback, learning_rate=0.0, activation_checkpointing=checkpointing
    )
    [line] = expert_lines(log)
    assert line["step"] == 4

    entropies = []
    all_dead = []
    for layer, counts in selections_by_layer(family).items():
        entropies.append(entropy(counts))
        all_dead.append(int((counts == 0).sum()))
        assert line[f"expert/load_balance/layer_{layer}"] == pytest.approx(entropies[-1])
        assert line[f"expert/dead/layer_{layer}"] == all_dead[-1]
    assert line["expert/load_balance"] == pytest.approx(np.mean(entropies))
    assert line["expert/dead"] == sum(all_dead)


def selections_by_layer(family: str) -> dict[int, np.ndarray]:
    """For each layer [experts]: how often 8 rows, each in a pass of its own, select an expert."""
    model = deepcopy(small_model(family)).eval()
    if family == "olmoe":
        experts = model.config.num_experts
    else:
        experts = model.config.num_local_experts
    selections: dict[int, np.ndarray] = {}
    for row in rows(8):
        with torch.no_grad(), moe_lab.record(model) as record:
            model(torch.tensor([row.ids]))
        for layer, indices in enumerate(record.indices):
            counts = np.bincount(np.asarray(indices).reshape(-1), minlength=experts)
            selections[layer] = selections.get(layer, 0) + counts
    return selections


def test_every_window_is_counted_anew(tmp_path):
    callback = moe_lab.ExpertMetrics(every=1)
    _, log = trained(deepcopy(small_model("olmoe")), tmp_path, callback)
    lines = expert_lines(log)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert len({line["expert/load_balance"] for line in lines}) == 4


def test_a_training_goes_on_as_if_it_were_not_counted_and_no_hook_stays(tmp_path):
    plain = deepcopy(small_model("olmoe"))
    trained(plain, tmp_path / "plain")
    counted = deepcopy(small_model("olmoe"))
    trained(counted, tmp_path / "counted", moe_lab.ExpertMetrics(every=2))
    assert_same(plain, counted)
    for name, module in counted.named_modules():
        assert not module._forward_hooks, name
        assert not module._forward_pre_hooks, name


def test_validation_rows_are_measured_as_the_command_measures_them(tmp_path):
    model = deepcopy(small_model("olmoe"))
    validation = Rows(rows(3))
    examples = [validation[number] for number in range(3)]
    callback = moe_lab.ExpertMetrics(every=4, rows=examples)
    _, log = trained(model, tmp_path, callback)
    [line] = expert_lines(log)
    expected = measure(model, examples)
    for name in ("load_balance", "collaboration", "specialization", "accuracy"):
        assert line[f"expert/{name}"] == pytest.approx(expected[name]["value"]), name
    assert line["expert/capacity_least"] == pytest.approx(expected["capacity"]["least"]["value"])


def test_the_values_go_to_the_trainers_own_report(tmp_path, monkeypatch):
    reported = []

    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            reported.append((state.global_step, logs))

    monkeypatch.setattr(
        training_callback, "get_reporting_integration_callbacks", lambda names: [Reporter]
    )
    callback = moe_lab.ExpertMetrics(every=2)
    trained(deepcopy(small_model("olmoe")), tmp_path, callback)
    assert [step for step, _ in reported] == [2, 4]
    for _, logs in reported:
        assert "expert/load_balance" in logs
        assert "expert/dead/layer_0" in logs


def test_what_cannot_be_counted_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="every=0"):
        moe_lab.ExpertMetrics(every=0)
    config = LlamaConfig(
        vocab_size=70,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    dense = LlamaForCausalLM(config)
    with pytest.raises(ModelError):
        trained(dense, tmp_path, moe_lab.ExpertMetrics())
