"""Expert metrics while a model is trained.

Broken by: a training that goes otherwise because it is measured, a measurement that is lost or doubled by a resume,
correlations of too few points.
"""

import json
import math
import statistics
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from moe_lab.metrics.training_metrics import ExpertMetrics, correlations, measure, read_measurements, summary
from moe_lab.reports.figures.curves import training_rows
from tests.support.interventions import some_rows
from tests.support.models import small_model

STEPS_PER_EPOCH = 3


def trainer_of(model: Any, folder: Path, *callbacks: TrainerCallback) -> Trainer:
    """A plain Trainer of transformers with dropout on, on rows of one length."""
    ids = torch.randint(1, 60, (2 * STEPS_PER_EPOCH, 8), generator=torch.Generator().manual_seed(1)).tolist()
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=2,
        per_device_train_batch_size=2,
        learning_rate=5e-3,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in ids]
    model.config.attention_dropout = 0.3
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    return Trainer(model=model, args=arguments, train_dataset=rows, callbacks=list(callbacks))


def measured_in(folder: Path) -> ExpertMetrics:
    return ExpertMetrics(some_rows(), folder)


def without_seconds(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def same_weights(one: Any, other: Any) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.slow
def test_a_training_goes_on_as_if_it_were_not_measured(tmp_path):
    plain, measured = deepcopy(small_model("olmoe")), deepcopy(small_model("olmoe"))
    trainer_of(plain, tmp_path / "plain").train()
    state = torch.get_rng_state()
    trainer_of(measured, tmp_path / "measured", measured_in(tmp_path)).train()
    assert same_weights(plain, measured)
    assert torch.equal(torch.get_rng_state(), state)
    assert not same_weights(plain, small_model("olmoe"))
    lines = read_measurements(tmp_path)
    assert [(line["step"], line["epoch"]) for line in lines] == [(0, 0.0), (3, 1.0), (6, 2.0)]
    for line, model in ((lines[0], small_model("olmoe")), (lines[-1], measured)):
        expected = without_seconds([json.loads(json.dumps(measure(model, some_rows())))])[0]
        assert {key: line[key] for key in expected} == expected
    assert lines[0]["load_balance"]["value"] != lines[-1]["load_balance"]["value"]
    columns = [
        "step",
        "epoch",
        "load_balance",
        "collaboration",
        "capacity",
        "capacity_most",
        "specialization",
    ]
    assert [list(row)[: len(columns)] for row in training_rows(lines)] == [columns] * 3
    told = summary(tmp_path)
    assert told is not None and told["measurements"] == 3
    assert told["last"]["load_balance"] == lines[-1]["load_balance"]["value"]


def line(*values: float | None) -> dict[str, Any]:
    balance, together, capacity, special = ({"value": value} for value in values)
    found = {"load_balance": balance, "collaboration": together, "specialization": special, "capacity": None}
    if values[2] is not None:
        found["capacity"] = {"least": capacity, "most": {"value": -values[2]}}
    return found


def test_correlations_say_how_many_points_they_have():
    values = [(1.0, 2.0, 3.0, 5.0), (2.0, 4.0, 2.0, 5.0), (4.0, 8.0, 0.0, 5.0), (3.0, 5.0, 1.5, 5.0)]
    lines = [line(*each) for each in values]
    found = {tuple(one["of"]): one for one in correlations(lines)}
    assert len(found) == 10, "Capacity counts twice"
    one = found["load_balance", "collaboration"]
    r = statistics.correlation([1, 2, 4, 3], [2, 4, 8, 5])
    assert one["n"] == 4 and one["pearson"] == pytest.approx(r) and one["spearman"] == pytest.approx(1.0)
    half = 1.959964 / math.sqrt(1)
    assert one["ci95"] == pytest.approx([math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)])
    assert found["load_balance", "capacity"]["pearson"] < -0.9
    assert found["capacity", "capacity_most"]["pearson"] == pytest.approx(-1)
    constant = found["load_balance", "specialization"]
    assert constant["pearson"] is None and "does not change" in constant["note"]
    few = correlations(lines[:2])
    assert all(one["pearson"] is None and one["n"] == 2 and "fewer than 3" in one["note"] for one in few)
    three = correlations([*lines[:2], line(5.0, 1.0, None, 1.0)])
    assert {tuple(one["of"]): one["n"] for one in three}["load_balance", "capacity"] == 2
    assert three[0]["pearson"] is not None and three[0]["ci95"] is None
