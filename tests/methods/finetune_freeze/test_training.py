"""A fine-tuning as a whole.

Broken by: a frozen tensor that moves by a bit, a trained one that does not, a key that does not
reach transformers, memory of moments that an optimizer does not keep, a held-out conversation that
is trained on, the weights of another epoch than the best.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from moe_lab.config.schema import Config
from moe_lab.errors import TaskError
from moe_lab.methods.data_files import read_data
from moe_lab.methods.finetune_freeze import trainer as trainer_module
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.trainer import Order
from moe_lab.methods.tokenized import Pad, Rows
from tests.support.designs import design
from tests.support.models import small_model
from tests.support.tiers import first_fast
from tests.support.trainings import (
    names_by_group,
    rows,
    train,
)

FAMILIES = ("olmoe", "mixtral", "gpt_oss", "qwen3_moe", "deepseek", "deepseek_v3")
PHASES = [
    {"frozen": [], "until": 0.34},
    {"frozen": ["router"], "until": 0.67},
    {"frozen": ["experts"], "until": 1.0},
]
"""Everything has momentum before it is frozen: 2 of 6 steps each."""


class Watch:
    """What a training holds before its first step, and at each step."""

    def __init__(self) -> None:
        self.states: list[dict[str, torch.Tensor]] = []
        """All tensors before the first step and after each."""
        self.gradients: list[set[str]] = []
        """The parameters that have a gradient, by step."""
        self.moments: list[set[str]] = []
        """The parameters of which the optimizer holds something, by step."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self._copy_tensors(model)

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        names = {name for name, tensor in model.named_parameters() if tensor.grad is not None}
        self.gradients.append(names)

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        self._copy_tensors(model)
        names = {name for name, tensor in model.named_parameters() if tensor in optimizer.state}
        self.moments.append(names)

    def _copy_tensors(self, model):
        self.states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})


@pytest.fixture
def watch(monkeypatch) -> Watch:
    watch = Watch()
    for event in ("on_train_begin", "on_pre_optimizer_step", "on_step_end"):
        monkeypatch.setattr(trainer_module.Freezing, event, getattr(watch, event))
    return watch


def unchanged_names(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """The tensors that are equal byte by byte."""
    names = set()
    for name, tensor in before.items():
        if tensor.numpy().tobytes() == after[name].numpy().tobytes():
            names.add(name)
    return names


def union(groups: dict[str, set[str]]) -> set[str]:
    names: set[str] = set()
    for group in groups.values():
        names |= group
    return names


# What is frozen


@pytest.mark.parametrize("family", first_fast(FAMILIES, 2))
def test_frozen_tensors_are_byte_equal_over_their_phase_and_others_change(family, tmp_path, watch):
    model = deepcopy(small_model(family))
    groups = names_by_group(model)
    parameters = union(groups)
    buffers = model.state_dict().keys() - parameters
    if family == "deepseek_v3":
        biases = [name for name in buffers if "e_score_correction_bias" in name]
        assert len(biases) == 3

    train(model, tmp_path, phases=PHASES, weight_decay=0.5)

    assert len(watch.states) == 7
    for phase, frozen in enumerate([set(), groups["router"], groups["experts"]]):
        first_step = 2 * phase
        unchanged = unchanged_names(watch.states[first_step], watch.states[first_step + 2])
        assert unchanged == frozen | buffers, f"phase {phase}"
        for step in (first_step, first_step + 1):
            assert watch.gradients[step] == parameters - frozen
            assert watch.moments[step] == parameters - frozen


@pytest.mark.parametrize("family", ["deepseek", "qwen2_moe"])
@pytest.mark.parametrize("frozen", [["experts"], ["experts", "shared_experts"]], ids="+".join)
def test_shared_experts_train_unless_they_are_frozen_with_the_experts(
    family, frozen, tmp_path, watch
):
    model = deepcopy(small_model(family))
    groups = names_by_group(model)
    assert groups["shared_experts"]
    frozen_names = set()
    for group in frozen:
        frozen_names |= groups[group]

    train(model, tmp_path, count=4, epochs=1, phases=[{"frozen": frozen, "until": 1.0}])

    unchanged = unchanged_names(watch.states[0], watch.states[-1])
    assert unchanged & union(groups) == frozen_names


@pytest.mark.parametrize("family", ("olmoe", "gpt_oss", "deepseek"))
def test_routers_alone_are_trained_where_all_else_is_frozen(family, tmp_path, watch):
    """The steps are those of a plain loop with AdamW over the routers' parameters."""
    model = deepcopy(small_model(family))
    plain = deepcopy(model)
    routers = names_by_group(model)["router"]
    phases = [{"frozen": ["experts", "shared_experts", "other"], "until": 1.0}]
    settings = {"phases": phases, "learning_rate": 1e-3, "warmup_ratio": 0.0}
    train(model, tmp_path, count=4, **settings)

    first = watch.states[0]
    last = watch.states[-1]
    assert unchanged_names(first, last) == first.keys() - routers

    weights = []
    biases = []
    for name, parameter in plain.named_parameters():
        if name in routers and parameter.ndim > 1:
            weights.append(parameter)
        elif name in routers:
            biases.append(parameter)
    decayed = {"params": weights, "weight_decay": 0.1}
    not_decayed = {"params": biases, "weight_decay": 0.0}  # as in transformers
    optimizer = torch.optim.AdamW([decayed, not_decayed])
    order = list(Order(4, 2, seed=0, epoch=lambda: 0))
    batches = [order[:2], order[2:]]
    plain.train()
    for step, numbers in enumerate(batches):
        batch = Pad(0)([Rows(rows(4))[number] for number in numbers])
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (len(batches) - step) / len(batches)
        optimizer.zero_grad()
        plain(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_([*weights, *biases], 1.0)
        optimizer.step()
    for name, parameter in plain.named_parameters():
        assert torch.allclose(parameter, last[name], atol=1e-6), name


@pytest.mark.parametrize("router", ["word", "expert"])
def test_routers_that_do_not_decide_for_single_tokens_are_frozen_too(router, tmp_path, watch):
    """Their expert metrics are not defined, so what is held out gives a loss alone."""
    settings = {"schedule": "router-experts", "count": 4, "held_out": 2, "warmup_ratio": 0.0}
    training_info = train(design(router), tmp_path, **settings)
    assert training_info["validation"]["losses"]
    assert training_info["expert_metrics"] is None

    start, middle, end = watch.states
    routers = {name for name in start if "gate.weight" in name}
    experts = {name for name in start if "down_proj" in name}
    unchanged = unchanged_names(start, middle)
    assert routers <= unchanged
    assert experts & unchanged == set()
    unchanged = unchanged_names(middle, end)
    assert experts <= unchanged
    assert routers & unchanged == set()


def test_the_reported_memory_is_what_the_optimizer_holds(tmp_path, monkeypatch):
    measured = []

    def measure(self, args, state, control, optimizer=None, model=None, **kwargs):
        total = 0
        for parameter_state in optimizer.state.values():
            for key, value in parameter_state.items():
                if key != "step":
                    total += value.nbytes
        measured.append(total)

    monkeypatch.setattr(trainer_module.Freezing, "on_step_end", measure, raising=False)
    first, second, third = train(deepcopy(small_model("olmoe")), tmp_path, phases=PHASES)["phases"]

    by_step = []
    for phase in (first, second, third):
        by_step += [phase["optimizer_bytes"]] * 2
    assert measured == by_step
    whole = first["gradient_bytes"] + first["optimizer_bytes"]
    for phase in (first, second, third):
        assert phase["gradient_bytes"] + phase["optimizer_bytes"] + phase["saved_bytes"] == whole
    assert first["saved_bytes"] == 0
    assert third["saved_bytes"] > second["saved_bytes"] > 0


# The step


def auxiliary_loss(router_logits: list[torch.Tensor], top_k: int) -> torch.Tensor:
    """E times the sum over experts of f times P, over the tokens of all layers.

    f is the expert's number of selections per token, P its mean probability.
    """
    logits_TE = torch.cat(router_logits)
    tokens, experts = logits_TE.shape
    choices = logits_TE.topk(top_k).indices.flatten().tolist()
    probability_E = logits_TE.softmax(-1).mean(0)
    total = torch.zeros(())
    for expert in range(experts):
        total = total + choices.count(expert) / tokens * probability_E[expert]
    return experts * total


def log_lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("family", ["olmoe", "mixtral"])
def test_a_steps_gradient_is_that_of_the_formula(family, tmp_path, monkeypatch):
    """The loss is the cross-entropy per answer token of the step and the weighted auxiliary loss.

    The auxiliary loss is the mean over the step's passes.
    """
    gradients = {}

    def record(self, model):
        for name, parameter in self.model.named_parameters():
            gradients[name] = parameter.grad.clone()
        return torch.tensor(1.0)  # instead of clipping

    monkeypatch.setattr(trainer_module.FreezeTrainer, "_clip_grad_norm", record)
    train(
        deepcopy(small_model(family)),
        tmp_path,
        router_aux_loss_coef=0.5,
        batch_size=1,
        gradient_accumulation=2,
        count=2,
    )

    reference = deepcopy(small_model(family)).train()
    losses = []
    auxiliary_losses = []
    for row in rows(2):
        output = reference(torch.tensor([row.ids]), output_router_logits=True)
        log_probs = output.logits[0, :-1].log_softmax(-1)
        for position, token in enumerate(row.ids[1:]):
            losses.append(-log_probs[position, token])
        top_k = reference.config.num_experts_per_tok
        auxiliary_losses.append(auxiliary_loss(output.router_logits, top_k))
    mean_auxiliary_loss = torch.stack(auxiliary_losses).mean()
    (torch.stack(losses).mean() + 0.5 * mean_auxiliary_loss).backward()

    [line] = log_lines(tmp_path)
    assert line["aux_loss"] == pytest.approx(mean_auxiliary_loss.item(), rel=1e-4)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-6, rtol=1e-4, msg=name)


def test_the_routers_have_a_learning_rate_of_their_own(tmp_path):
    """Adam's first step is the learning rate in every entry that has a gradient."""
    before = small_model("olmoe")
    after = deepcopy(before)
    settings = {"count": 2, "weight_decay": 0.0, "warmup_ratio": 0.0}
    train(after, tmp_path, learning_rate=1e-3, router_lr=1e-5, **settings)

    def largest_change(name: str) -> float:
        return (after.state_dict()[name] - before.state_dict()[name]).abs().max().item()

    router_change = largest_change("model.layers.1.mlp.gate.weight")
    expert_change = largest_change("model.layers.1.mlp.experts.down_proj")
    assert router_change == pytest.approx(1e-5, rel=0.05)
    assert expert_change == pytest.approx(1e-3, rel=0.05)


# Held-out conversations


def test_it_is_the_loss_per_answer_token_of_what_is_held_out(tmp_path):
    model = deepcopy(small_model("olmoe"))
    settings = {"count": 6, "held_out": 5, "epochs": 4, "learning_rate": 1e-3}
    training_info = train(model, tmp_path, **settings)

    losses = []
    for line in log_lines(tmp_path):
        if "validation_loss" in line:
            losses.append({"step": line["step"], "loss": line["validation_loss"]})
    assert [loss["step"] for loss in losses] == [3, 6, 9, 12]
    assert training_info["validation"]["losses"] == losses

    held_out = rows(6 + 5)[6:]
    batch = Pad(0)([{"input_ids": row.ids, "labels": row.labels} for row in held_out])
    with torch.no_grad():
        expected = model.eval()(**batch).loss.item()
    assert losses[-1]["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def nine_conversations(tmp_path) -> str:
    """A data file; the conversations begin with "ask 0" to "ask 8"."""
    file = tmp_path / "chats.jsonl"
    lines = [json.dumps({"conversations": [f"ask {number}", "x"]}) for number in range(9)]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def numbers_of(conversations: list) -> list[int]:
    return [int(messages[0]["content"].removeprefix("ask ")) for messages in conversations]


@pytest.mark.parametrize(
    ("dataset_size", "validation_size", "trained", "held_out"),
    [
        (None, None, [0, 1, 2, 3, 4, 5, 6, 7, 8], []),
        (None, 2, [0, 1, 2, 3, 4, 5, 6], [7, 8]),
        (5, 2, [0, 1, 2], [3, 4]),
    ],
)
def test_the_last_conversations_of_a_list_are_held_out(
    dataset_size, validation_size, trained, held_out, nine_conversations
):
    data = read(nine_conversations, dataset_size, validation_size)
    assert numbers_of(data.train) == trained
    assert numbers_of(data.validation) == held_out


def test_a_list_that_is_held_out_as_a_whole_is_refused(nine_conversations):
    with pytest.raises(TaskError, match="holds them all out"):
        read(nine_conversations, None, 9)


def read(dataset: str, dataset_size: int | None, validation_size: int | None) -> Any:
    keys = {}
    if dataset_size is not None:
        keys["dataset_size"] = dataset_size
    if validation_size is not None:
        keys["validation_size"] = validation_size
    config = FinetuneConfig(dataset=dataset, **keys)
    return read_data(Config(), config.dataset, config.dataset_size, config.held_out)
