"""Masked and random routing against models that were edited by hand, and expert
metrics while a model is trained.

Broken by: a masked expert that keeps a share of the softmax, one fewer expert per token,
noise that depends on what was read together, weights that are not the token's own;
padding that is counted or seen, a label compared with the token after it, a policy that gets
other tokens than those that are read; a training that goes otherwise because it is measured,
a measurement that is lost or doubled by a resume, correlations of too few points.
"""

import copy
import json
import math
import statistics
from copy import deepcopy
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from moe_lab.engine import pass_size
from moe_lab.engine.forward.batch import prefix_names
from moe_lab.engine.forward.forward import Observer, observed
from moe_lab.engine.lm import EngineLM
from moe_lab.metrics.correlations import correlations
from moe_lab.metrics.counts import SelectedExperts
from moe_lab.metrics.interventions import Masked, RandomRouting, random_experts
from moe_lab.metrics.teacher_forcing import (
    NO_LABEL,
    count_rows,
    labelled_selections,
    labelled_tokens,
    right_tokens,
)
from moe_lab.metrics.training_metrics import EpochMetrics, measure, read_measurements, summary
from moe_lab.reports.figures.curves import training_rows
from moe_lab.routing import record, routed
from tests.support.ensembles import answered
from tests.support.interventions import by_hand, some_rows, without_experts
from tests.support.models import make_model, small_model
from tests.support.tiers import by_family
from tests.support.trainings import assert_same

SHARED = "These are the first words of many. "
PAIRS = [
    (SHARED + "One", " red"),
    (SHARED + "One", " reddish"),
    (SHARED + "One", " blue"),
    (SHARED + "Another and longer", " no"),
    ("Short", " yes"),
]


def scores(model: Any, tokenizer: Any, observer: Observer | None = None) -> list[float]:
    lm = EngineLM(model, tokenizer, progress=False)
    with observed(lm, observer or Observer()):
        return [value for value, _ in answered(lm, "loglikelihood", PAIRS)]


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "qwen3_moe"]))
def test_a_masked_expert_is_one_that_is_not_there(family, tokenizer):
    model = make_model(family)
    masked = [3, 0, 5, 2]
    expected = scores(without_experts(model, family, masked), tokenizer)
    assert scores(model, tokenizer, Masked(masked)) == pytest.approx(expected, abs=1e-4)
    assert scores(model, tokenizer) != pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize(
    ("family", "bias"), [("gpt_oss", "bias"), ("deepseek_v3", "e_score_correction_bias")]
)
def test_a_masked_expert_is_one_whose_router_row_cannot_win(family, bias, tokenizer):
    model = copy.deepcopy(small_model(family))
    plain = scores(model, tokenizer)
    with routed(model, lambda router, routing: None) as routers:
        pass
    masked = [layer % 8 for layer in range(1, len(routers) + 1)]
    masked_scores = scores(model, tokenizer, Masked(masked))
    with torch.no_grad():
        for router in routers:
            getattr(router.module, bias)[masked[router.layer]] = -1e9
    assert masked_scores == pytest.approx(scores(model, tokenizer), abs=1e-4)
    assert masked_scores != pytest.approx(plain, abs=1e-2)


def test_masking_keeps_k_distinct_experts_in_every_family_with_rows(tokenizer):
    for family in (
        "olmoe",
        "mixtral",
        "gpt_oss",
        "deepseek_v3",
        "qwen2_moe",
        "ernie4_5_moe",
        "cohere2_moe",
    ):
        model = small_model(family)
        with torch.inference_mode(), record(model) as plain:
            model(torch.arange(40)[None])
        masked = [int(index[:, 0].mode().values) for index in plain.indices]
        policy = Masked(masked)
        with torch.inference_mode(), routed(model, policy), record(model) as routes:
            logits = model(torch.arange(40)[None]).logits
        assert not logits.isnan().any()
        for layer, index_TK in enumerate(routes.indices):
            assert index_TK.shape == plain.indices[layer].shape
            assert (index_TK != masked[layer]).all()
            for row in index_TK.tolist():
                assert len(set(row)) == len(row)


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_random_routing_is_that_of_a_router_made_by_hand(family, tokenizer):
    """Each pair alone, with experts that are drawn token by token.

    The engine reads all pairs at once and shares their beginnings.
    """
    model = small_model(family)
    lm = EngineLM(model, tokenizer, progress=False)
    expected = []
    for pair in PAIRS:
        context, continuation = lm.encode_pair(*pair)
        ids = [*context, *continuation[:-1]]
        with torch.inference_mode(), routed(model, by_hand(ids, seed=3)):
            log_probs = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        places = list(range(len(context) - 1, len(ids)))
        expected.append(log_probs[places, continuation].sum().item())
    assert scores(model, tokenizer, RandomRouting(3)) == pytest.approx(expected, abs=1e-4)
    assert scores(model, tokenizer, RandomRouting(4)) != pytest.approx(expected, abs=1e-2)


def test_random_experts_are_distinct_and_uniform():
    """20,000 tokens, 8 experts, 2 of them each: every expert is within 5 standard deviations (61)
    of 5,000, with odds of about 1 in 200,000 against."""
    names_T = torch.from_numpy(prefix_names(list(range(20000))))
    index_TK = random_experts(0, names_T, torch.arange(20000), 1, E=8, K=2)
    assert (index_TK[:, 0] != index_TK[:, 1]).all()
    counts = torch.bincount(index_TK.flatten(), minlength=8)
    assert ((counts - 5000).abs() < 305).all()
    other_experts = random_experts(0, names_T, torch.arange(20000), 2, E=8, K=2)
    assert (other_experts != index_TK).any(dim=-1).float().mean() > 0.9


FAMILIES = ["olmoe", "mixtral", "gpt_oss", "deepseek_v3", "qwen2_moe", "jamba"]


def predicted_rows(model: Any) -> list[dict[str, list[int]]]:
    """The same, with labels of which the plain model predicts every second one."""
    rows = some_rows()
    for row in rows:
        with torch.no_grad():
            best = model(torch.tensor([row["input_ids"]])).logits[0].argmax(dim=-1).tolist()
        for place in range(1, len(row["labels"])):
            if row["labels"][place] != NO_LABEL and place % 2:
                row["labels"][place] = best[place - 1]
    return rows


def one_by_one(model: Any, rows: list[dict[str, list[int]]], policy: Any) -> list[int]:
    scores_by_pair = []
    for row in rows:
        ids = row["input_ids"]
        with torch.no_grad(), routed(model, policy(ids)):
            best = model(torch.tensor([ids])).logits[0].argmax(dim=-1).tolist()
        scores_by_pair.append(sum(best[t - 1] == row["labels"][t] for t in range(1, len(ids))))
    return scores_by_pair


@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_batches_are_rows_read_alone(family, monkeypatch):
    monkeypatch.setattr(pass_size, "CPU_TOKENS", 1 if family == "deepseek_v3" else 40)
    model = small_model(family)
    rows = predicted_rows(model)
    plain = right_tokens(model, rows, Observer())
    assert plain.tolist() == one_by_one(model, rows, lambda ids: lambda router, routing: None)
    assert 0 < plain.sum() < labelled_tokens(rows).sum()
    drawn = right_tokens(model, rows, RandomRouting(3))
    assert drawn.tolist() == one_by_one(model, rows, lambda ids: by_hand(ids, seed=3))
    assert drawn.tolist() != plain.tolist()
    with routed(model, Observer()) as routers:
        masked = Masked([1] * len(routers))
    assert right_tokens(model, rows, masked).tolist() == one_by_one(model, rows, lambda ids: masked)


@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_experts_are_counted_as_of_rows_read_alone(family, monkeypatch):
    """Pairs at all tokens, and selections at the labelled ones."""
    monkeypatch.setattr(pass_size, "CPU_TOKENS", 40)
    model = small_model(family)
    rows = some_rows()
    routes = SelectedExperts()
    right_tokens(model, rows, routes)
    counts = count_rows(routes, rows)
    selections_LE, labelled = labelled_selections(routes, rows)
    pairs_LEE = counts.pairs_GPLEE[:, 0].sum(axis=0)
    pairs = np.zeros_like(pairs_LEE)
    selections = np.zeros_like(selections_LE)
    for row in rows:
        with record(model) as record_alone, torch.no_grad():
            model(torch.tensor([row["input_ids"]]))
        for layer, index_TK in enumerate(record_alone.indices):
            for experts, label in zip(index_TK.tolist(), row["labels"], strict=True):
                selections[layer, experts] += label != NO_LABEL
                for i, j in product(experts, experts):
                    pairs[layer, i, j] += 1
    assert (pairs_LEE == pairs).all()
    assert (selections_LE == selections).all()
    assert counts.tokens_P == [sum(len(row["input_ids"]) for row in rows), 0]
    experts_by_layer = [logits_TE.shape[-1] for logits_TE in record_alone.logits]
    assert list(routes.experts.values()) == experts_by_layer
    labels = chain.from_iterable(row["labels"] for row in rows)
    assert labelled == sum(label != NO_LABEL for label in labels)


def test_the_model_is_left_as_it_was():
    model = small_model("olmoe").train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    right_tokens(model, some_rows(), RandomRouting(0))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    model.eval()


def test_the_four_metrics_are_what_they_say():
    model = small_model("olmoe")
    rows = predicted_rows(model)
    metrics = measure(model, rows)
    answers = sum(label != NO_LABEL for row in rows for label in row["labels"][1:])
    plain = right_tokens(model, rows, Observer())
    assert metrics["answer_tokens"] == answers
    assert metrics["accuracy"]["value"] == pytest.approx(plain.sum() / answers)
    for which, masked in metrics["capacity"].items():
        assert which in ("least", "most")
        lost = plain.sum() - right_tokens(model, rows, Masked(masked["masked"])).sum()
        assert masked["value"] == pytest.approx(lost / answers)
    lost = plain.sum() - right_tokens(model, rows, RandomRouting(0)).sum()
    assert metrics["specialization"]["value"] == pytest.approx(lost / answers)
    low, high = metrics["specialization"]["ci95"]
    assert low < metrics["specialization"]["value"] < high
    mean = np.mean([layer["value"] for layer in metrics["load_balance"]["layers"]])
    assert metrics["load_balance"]["value"] == pytest.approx(mean)


def test_a_data_set_is_read_by_its_length_alone():
    """A data set of torch need not end when it is iterated: nothing after its last row is read."""
    rows = some_rows(3)

    class Endless:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, number: int) -> dict[str, list[int]]:
            return rows[number] if number < len(rows) else {"input_ids": [1, 2], "labels": [1, 2]}

    endless: Any = Endless()
    from_endless = measure(small_model("olmoe"), endless)
    from_list = measure(small_model("olmoe"), rows)
    assert from_endless | {"seconds": 0} == from_list | {"seconds": 0}


def trainer_of(model: Any, folder: Path, *callbacks: TrainerCallback) -> Trainer:
    """A plain Trainer of transformers with dropout, on rows of one length.

    It takes three steps in each of two epochs.
    """
    ids = torch.randint(1, 60, (6, 8), generator=torch.Generator().manual_seed(1)).tolist()
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


@pytest.mark.slow
@pytest.mark.usefixtures("four_metrics")
def test_a_training_goes_on_as_if_it_were_not_measured(tmp_path):
    plain = deepcopy(small_model("olmoe"))
    measured = deepcopy(small_model("olmoe"))
    trainer_of(plain, tmp_path / "plain").train()
    state = torch.get_rng_state()
    trainer_of(measured, tmp_path / "measured", EpochMetrics(some_rows(), tmp_path)).train()
    assert_same(plain, measured)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(plain.lm_head.weight, small_model("olmoe").lm_head.weight)
    lines = read_measurements(tmp_path)
    assert [(line["step"], line["epoch"]) for line in lines] == [(0, 0.0), (3, 1.0), (6, 2.0)]
    for line, model in ((lines[0], small_model("olmoe")), (lines[-1], measured)):
        expected = json.loads(json.dumps(measure(model, some_rows())))
        assert line | {"seconds": 0} == line | expected | {"seconds": 0}
    assert lines[0]["load_balance"]["value"] != lines[-1]["load_balance"]["value"]
    columns = "step epoch load_balance collaboration capacity capacity_most specialization".split()
    assert [list(row)[: len(columns)] for row in training_rows(lines)] == [columns] * 3
    logged_summary = summary(tmp_path)
    assert (logged_summary["measurements"], logged_summary["last"]["load_balance"]) == (
        3,
        lines[-1]["load_balance"]["value"],
    )


def line(*values: float | None) -> dict[str, Any]:
    balance, together, capacity, special = ({"value": value} for value in values)
    metrics_line = {
        "load_balance": balance,
        "collaboration": together,
        "specialization": special,
        "capacity": None,
    }
    if values[2] is not None:
        metrics_line["capacity"] = {"least": capacity, "most": {"value": -values[2]}}
    return metrics_line


@pytest.mark.usefixtures("four_metrics")
def test_correlations_say_how_many_points_they_have():
    values = [
        (1.0, 2.0, 3.0, 5.0),
        (2.0, 4.0, 2.0, 5.0),
        (4.0, 8.0, 0.0, 5.0),
        (3.0, 5.0, 1.5, 5.0),
    ]
    lines = [line(*point) for point in values]
    correlations_found = {
        tuple(correlation["of"]): correlation for correlation in correlations(lines)
    }
    assert len(correlations_found) == 10, "Capacity counts twice"
    correlation = correlations_found["load_balance", "collaboration"]
    r = statistics.correlation([1, 2, 4, 3], [2, 4, 8, 5])
    assert correlation["n"] == 4
    assert correlation["pearson"] == pytest.approx(r)
    assert correlation["spearman"] == pytest.approx(1.0)
    half = 1.959964 / math.sqrt(1)
    assert correlation["ci95"] == pytest.approx(
        [math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)]
    )
    assert correlations_found["load_balance", "capacity"]["pearson"] < -0.9
    assert correlations_found["capacity", "capacity_most"]["pearson"] == pytest.approx(-1)
    constant = correlations_found["load_balance", "specialization"]
    assert constant["pearson"] is None
    assert "does not change" in constant["note"]
    few = correlations(lines[:2])
    assert all(
        correlation["pearson"] is None
        and correlation["n"] == 2
        and "fewer than 3" in correlation["note"]
        for correlation in few
    )
    three = correlations([*lines[:2], line(5.0, 1.0, None, 1.0)])
    assert {tuple(correlation["of"]): correlation["n"] for correlation in three}[
        "load_balance", "capacity"
    ] == 2
    assert three[0]["pearson"] is not None
    assert three[0]["ci95"] is None
