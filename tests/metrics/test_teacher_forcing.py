"""Padded batches of rows against one row at a time.

Broken by: padding that is counted or seen, a label compared with the token after it, a policy that is told of other
tokens than those that are read.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from moe_lab.engine import pass_size
from moe_lab.engine.forward.forward import Observer
from moe_lab.metrics.counts import Routes
from moe_lab.metrics.interventions import Masked, RandomRouting
from moe_lab.metrics.teacher_forcing import (
    NO_LABEL,
    count_rows,
    labelled_selections,
    labelled_tokens,
    right_tokens,
)
from moe_lab.metrics.training_metrics import measure
from moe_lab.routing import record, routed
from tests.support.interventions import by_hand, some_rows
from tests.support.models import small_model
from tests.support.tiers import by_family

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
    found = []
    for row in rows:
        ids = row["input_ids"]
        with torch.no_grad(), routed(model, policy(ids)):
            best = model(torch.tensor([ids])).logits[0].argmax(dim=-1).tolist()
        found.append(sum(best[t - 1] == row["labels"][t] for t in range(1, len(ids))))
    return found


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
    model, rows, routes = small_model(family), some_rows(), Routes()
    right_tokens(model, rows, routes)
    counts, (selections_LE, labelled) = count_rows(routes, rows), labelled_selections(routes, rows)
    pairs_LEE = counts.pairs_GPLEE[:, 0].sum(axis=0)
    pairs, selections = np.zeros_like(pairs_LEE), np.zeros_like(selections_LE)
    for row in rows:
        with record(model) as alone, torch.no_grad():
            model(torch.tensor([row["input_ids"]]))
        for layer, index_TK in enumerate(alone.indices):
            for experts, label in zip(index_TK.tolist(), row["labels"], strict=True):
                selections[layer, experts] += label != NO_LABEL
                for i, j in product(experts, experts):
                    pairs[layer, i, j] += 1
    assert (pairs_LEE == pairs).all() and (selections_LE == selections).all()
    assert counts.tokens_P == [sum(len(row["input_ids"]) for row in rows), 0]
    assert list(routes.experts.values()) == [logits_TE.shape[-1] for logits_TE in alone.logits]
    assert labelled == sum(label != NO_LABEL for row in rows for label in row["labels"])


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
    found = measure(model, rows)
    answers = sum(label != NO_LABEL for row in rows for label in row["labels"][1:])
    plain = right_tokens(model, rows, Observer())
    assert found["answer_tokens"] == answers
    assert found["accuracy"]["value"] == pytest.approx(plain.sum() / answers)
    for which, masked in found["capacity"].items():
        assert which in ("least", "most")
        lost = plain.sum() - right_tokens(model, rows, Masked(masked["masked"])).sum()
        assert masked["value"] == pytest.approx(lost / answers)
    lost = plain.sum() - right_tokens(model, rows, RandomRouting(0)).sum()
    assert found["specialization"]["value"] == pytest.approx(lost / answers)
    low, high = found["specialization"]["ci95"]
    assert low < found["specialization"]["value"] < high
    mean = np.mean([layer["value"] for layer in found["load_balance"]["layers"]])
    assert found["load_balance"]["value"] == pytest.approx(mean)


def test_a_data_set_is_read_by_its_length_alone():
    """One of torch need not end when it is iterated: what stands behind its last row is not read."""
    rows = some_rows(3)

    class Endless:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, number: int) -> dict[str, list[int]]:
            return rows[number] if number < len(rows) else {"input_ids": [1, 2], "labels": [1, 2]}

    one, other = measure(small_model("olmoe"), Endless()), measure(small_model("olmoe"), rows)  # type: ignore[arg-type]
    assert {**one, "seconds": 0} == {**other, "seconds": 0}
