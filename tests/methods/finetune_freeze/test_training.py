"""A fine-tuning as a whole. Broken by: a frozen tensor that moves by a bit, a trained one that does not, a resume that ends
in other weights or forgets what was measured, a key that does not reach transformers, memory of moments that an
optimizer does not keep, a held-out conversation that is trained on, the weights of another epoch than the best.
"""

import errno
import json
from copy import deepcopy
from functools import cache

import pytest
import torch
from transformers import OlmoeForCausalLM, trainer_callback

from moe_lab.config.schema import Config
from moe_lab.errors import ResultsError, TaskError, TrainingError
from moe_lab.methods import trainer as shared
from moe_lab.methods.data_files import read_data
from moe_lab.methods.finetune_freeze import trainer as trainer_module
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.trainer import Order
from moe_lab.methods.finetune_freeze.training import finetune
from moe_lab.methods.tokenized import Pad, Rows
from moe_lab.metrics.training_metrics import read_measurements
from moe_lab.models.memory import weight_bytes
from tests.support.designs import design
from tests.support.files import files_up_to
from tests.support.models import small_model
from tests.support.tiers import first_fast
from tests.support.trainings import (
    assert_same,
    interrupted,
    names_by_group,
    rows,
    train,
    training_of,
)

FAMILIES = ("olmoe", "mixtral", "gpt_oss", "qwen3_moe", "deepseek", "deepseek_v3")
PHASES = [
    {"frozen": [], "until": 0.34},
    {"frozen": ["router"], "until": 0.67},
    {"frozen": ["experts"], "until": 1.0},
]
"""Everything has momentum before it is frozen: 2 of 6 steps each."""


class Watch:
    """Copies all tensors before the first step and after each, and what the optimizer holds."""

    def __init__(self):
        self.states, self.held, self.gradients = [], [], []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients.append(
            {name for name, own in model.named_parameters() if own.grad is not None}
        )

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        self.states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        self.held.append({name for name, own in model.named_parameters() if own in optimizer.state})


@pytest.fixture
def watch(monkeypatch) -> Watch:
    watch = Watch()
    for event in ("on_train_begin", "on_pre_optimizer_step", "on_step_end"):
        monkeypatch.setattr(trainer_module.Freezing, event, getattr(watch, event))
    return watch


def same_bytes(before: torch.Tensor, after: torch.Tensor) -> bool:
    return before.numpy().tobytes() == after.numpy().tobytes()


@pytest.mark.parametrize("family", first_fast(FAMILIES, 2))
def test_frozen_tensors_are_byte_equal_over_their_phase_and_others_change(family, tmp_path, watch):
    model = deepcopy(small_model(family))
    groups = names_by_group(model)
    train(model, tmp_path, phases=PHASES, weight_decay=0.5)
    parameters = set().union(*groups.values())
    assert len(watch.states) == 7
    for phase, frozen in enumerate(("", "router", "experts")):
        first, last = watch.states[2 * phase], watch.states[2 * phase + 2]
        for name in parameters:
            moved = not same_bytes(first[name], last[name])
            assert moved != (name in groups.get(frozen, ())), f"{name} in phase {phase}"
        buffers = first.keys() - parameters
        assert (
            family != "deepseek_v3"
            or sum("e_score_correction_bias" in name for name in buffers) == 3
        )
        for name in buffers:
            assert same_bytes(first[name], last[name]), f"the buffer {name}"
        for step in (2 * phase, 2 * phase + 1):
            expected = parameters - groups.get(frozen, set())
            assert watch.gradients[step] == watch.held[step] == expected, "none of the frozen"


@pytest.mark.parametrize("family", ("deepseek", "qwen2_moe"))
@pytest.mark.parametrize("freeze", (False, True))
def test_shared_experts_train_unless_they_are_frozen_with_the_experts(
    family, freeze, tmp_path, watch
):
    model = deepcopy(small_model(family))
    groups = names_by_group(model)
    phases = [{"frozen": ["experts", *["shared_experts"] * freeze], "until": 1.0}]
    train(model, tmp_path, count=4, epochs=1, phases=phases)
    first, last = watch.states[0], watch.states[-1]
    kept = {name for name in set().union(*groups.values()) if same_bytes(first[name], last[name])}
    assert groups["shared_experts"]
    assert kept == groups["experts"] | (groups["shared_experts"] if freeze else set())


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
    kept = {name for name in first if same_bytes(first[name], last[name])}
    assert kept == first.keys() - routers

    weights = [own for name, own in plain.named_parameters() if name in routers and own.ndim > 1]
    biases = [own for name, own in plain.named_parameters() if name in routers and own.ndim == 1]
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
    for name, own in plain.named_parameters():
        assert torch.allclose(own, last[name], atol=1e-6), name


@pytest.mark.parametrize("router", ("word", "expert"))
def test_routers_that_do_not_decide_for_single_tokens_are_frozen_too(router, tmp_path, watch):
    """Their expert metrics are not defined, so what is held out gives a loss alone."""
    told = train(
        design(router), tmp_path, schedule="router-experts", count=4, held_out=2, warmup_ratio=0.0
    )
    assert told["validation"]["losses"] and told["expert_metrics"] is None
    for half, (frozen, free) in enumerate(
        (("gate.weight", "down_proj"), ("down_proj", "gate.weight"))
    ):
        first, last = watch.states[half], watch.states[half + 1]
        for name in first:
            if frozen in name or free in name:
                assert same_bytes(first[name], last[name]) == (frozen in name), name


def test_the_reported_memory_is_what_the_optimizer_holds(tmp_path, monkeypatch):
    measured = []

    def measure(self, args, state, control, optimizer=None, model=None, **kwargs):
        moments = (own[key] for own in optimizer.state.values() for key in own.keys() - {"step"})
        measured.append(sum(value.nbytes for value in moments))

    monkeypatch.setattr(trainer_module.Freezing, "on_step_end", measure, raising=False)
    told = train(deepcopy(small_model("olmoe")), tmp_path, phases=PHASES)["phases"]
    assert measured == [phase["optimizer_bytes"] for phase in told for _ in range(2)]
    whole = told[0]["gradient_bytes"] + told[0]["optimizer_bytes"]
    for phase in told:
        assert phase["gradient_bytes"] + phase["optimizer_bytes"] + phase["saved_bytes"] == whole
    assert told[2]["saved_bytes"] > told[1]["saved_bytes"] > told[0]["saved_bytes"] == 0


def auxiliary_loss(router_logits: list[torch.Tensor], top_k: int) -> torch.Tensor:
    """E times the sum over experts of f (selections per token) times P (mean probability), over all layers' tokens."""
    logits_TE = torch.cat(router_logits)
    chosen = logits_TE.topk(top_k).indices.flatten().tolist()
    tokens, experts = logits_TE.shape
    probability_E = logits_TE.softmax(-1).mean(0)
    return experts * sum(chosen.count(e) / tokens * probability_E[e] for e in range(experts))


@pytest.mark.parametrize("family", ("olmoe", "mixtral"))
def test_a_steps_gradient_is_that_of_the_formula(family, tmp_path, monkeypatch):
    """Cross-entropy per answer token of the step, and the weight times the passes' mean auxiliary loss."""
    model, found = deepcopy(small_model(family)), {}

    def record(self, model):
        found.update({name: own.grad.clone() for name, own in model.named_parameters()})
        return torch.tensor(1.0)  # instead of clipping

    monkeypatch.setattr(trainer_module.FreezeTrainer, "_clip_grad_norm", record)
    settings = {
        "router_aux_loss_coef": 0.5,
        "batch_size": 1,
        "gradient_accumulation": 2,
        "count": 2,
    }
    train(model, tmp_path, **settings)
    reference = deepcopy(small_model(family)).train()
    total, tokens, auxiliary = torch.zeros(()), 0, []
    for row in rows(2):
        output = reference(torch.tensor([row.ids]), output_router_logits=True)
        log_probs = output.logits[0, :-1].log_softmax(-1)
        total = total - sum(log_probs[i, token] for i, token in enumerate(row.ids[1:]))
        tokens += len(row.ids) - 1
        auxiliary.append(auxiliary_loss(output.router_logits, reference.config.num_experts_per_tok))
    [line] = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert line["aux_loss"] == pytest.approx(sum(auxiliary).item() / 2, rel=1e-4)
    (total / tokens + 0.5 * sum(auxiliary) / 2).backward()
    for name, own in reference.named_parameters():
        torch.testing.assert_close(found[name], own.grad, atol=1e-6, rtol=1e-4, msg=name)


def test_the_routers_have_a_learning_rate_of_their_own(tmp_path):
    """Adam's first step is the learning rate in every entry that has a gradient."""
    before = small_model("olmoe")
    after = deepcopy(before)
    settings = {"count": 2, "weight_decay": 0.0, "warmup_ratio": 0.0}
    train(after, tmp_path, learning_rate=1e-3, router_lr=1e-5, **settings)
    moved = {
        name: (after.state_dict()[name] - own).abs().max()
        for name, own in before.state_dict().items()
    }
    assert moved["model.layers.1.mlp.gate.weight"].item() == pytest.approx(1e-5, rel=0.05)
    assert moved["model.layers.1.mlp.experts.down_proj"].item() == pytest.approx(1e-3, rel=0.05)


RESUMED = {"schedule": "none-router", "save_steps": 2, "epochs": 2, "count": 6}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A function of a family and settings: a model after a training that nothing interrupts, and its measurements."""

    @cache
    def trained(family, **settings):
        model, folder = deepcopy(small_model(family)), tmp_path_factory.mktemp("unbroken")
        train(model, folder, **settings)
        return model, measured(folder)

    return trained


def measured(folder):
    return [line | {"seconds": 0} for line in read_measurements(folder)]


@pytest.mark.parametrize(
    ("family", "last", "held_out"),
    [
        ("olmoe", 4, 0),
        *(pytest.param("deepseek", last, 2, marks=pytest.mark.slow) for last in (2, 4)),
    ],
)
def test_a_resumed_training_ends_in_the_same_bytes(
    family, last, held_out, unbroken, tmp_path, capsys
):
    """The switch is at step 3: it was interrupted in one phase or in the other.

    Experts are measured at steps 0, 3 and 6; what was measured after the last checkpoint is measured again.
    """
    settings = RESUMED | {"held_out": held_out}
    whole, measurements = unbroken(family, **settings)
    with interrupted(last + 1):
        train(deepcopy(small_model(family)), tmp_path / "cut", **settings)
    assert len(measured(tmp_path / "cut")) == held_out
    assert shared.last_checkpoint(tmp_path / "cut" / "checkpoints").name == f"checkpoint-{last}"
    resumed = deepcopy(small_model(family))
    capsys.readouterr()
    told = train(resumed, tmp_path / "cut", **settings)
    assert f"cut: training, continuing at step {last} of 6\n" in capsys.readouterr().err
    assert_same(whole, resumed)
    assert measured(tmp_path / "cut") == measurements and len(measurements) == (
        3 if held_out else 0
    )
    again, retold = finetune(
        training_of(tmp_path / "cut", **settings), deepcopy(small_model(family))
    )
    assert retold == told, "done, but not written: nothing is trained"
    assert_same(whole, again)


@pytest.mark.parametrize("last", (None, 3))
def test_a_validation_loss_that_is_none_stops_and_promises_only_what_is_there(
    last, tmp_path, monkeypatch
):
    forward = OlmoeForCausalLM.forward

    def poisoned(self, *args, **inputs):
        outputs = forward(self, *args, **inputs)
        if not self.training and outputs.loss is not None:
            outputs.loss = outputs.loss * float("nan")
        return outputs

    monkeypatch.setattr(OlmoeForCausalLM, "forward", poisoned)
    with pytest.raises(
        TrainingError, match="The validation loss of training step 6 is nan"
    ) as stop:
        train(deepcopy(small_model("olmoe")), tmp_path, held_out=2, save_steps=last or 1000)
    assert ("last checkpoint is kept" in str(stop.value)) == (last is not None)
    assert "NaN" not in "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))


def test_a_full_disk_during_a_checkpoint_keeps_the_last_one(unbroken, tmp_path, monkeypatch):
    """The same command then continues."""
    settings = {"save_steps": 2, "schedule": "none-router"}
    (whole, _), resumed = unbroken("olmoe", **settings), deepcopy(small_model("olmoe"))
    state = trainer_callback.TrainerState
    write = state.save_to_json

    def on_a_full_disk(self, path):
        if "checkpoint-4" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, path)

    with (
        monkeypatch.context() as patch,
        pytest.raises(ResultsError, match=r"checkpoint-4 .*No space left"),
    ):
        patch.setattr(state, "save_to_json", on_a_full_disk)
        train(deepcopy(small_model("olmoe")), tmp_path / "cut", **settings)
    assert shared.last_checkpoint(tmp_path / "cut" / "checkpoints").name == "checkpoint-2"
    train(resumed, tmp_path / "cut", **settings)
    assert_same(whole, resumed)


@pytest.mark.parametrize(
    "share, reason",
    [(0.1, "File too large"), (1.5, "torch.save failed, perhaps because the disk is full")],
)
def test_a_checkpoint_whose_tensors_cannot_be_written_is_named(share, reason, tmp_path):
    """The weights by safetensors, and the optimizer, twice as large, by torch.save: neither raises an OSError.

    The kernel's limit on the size of a file stands for that of the disk.
    """
    model = deepcopy(small_model("olmoe"))
    limit = files_up_to(round(share * weight_bytes(model)))
    with limit, pytest.raises(ResultsError, match=f"checkpoint-2 could not be written: {reason}"):
        train(model, tmp_path, save_steps=2)


HELD_OUT = {"count": 6, "held_out": 5, "epochs": 4, "learning_rate": 1e-3}


def test_it_is_the_loss_per_answer_token_of_what_is_held_out(tmp_path):
    model = deepcopy(small_model("olmoe"))
    told = train(model, tmp_path, **HELD_OUT)
    log = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    lines = [line for line in log if "validation_loss" in line]
    assert [line["step"] for line in lines] == [3, 6, 9, 12]
    assert told["validation"]["losses"] == [
        {"step": x["step"], "loss": x["validation_loss"]} for x in lines
    ]
    batch = Pad(0)([{"input_ids": row.ids, "labels": row.labels} for row in rows(11)[6:]])
    with torch.no_grad():
        assert lines[-1]["validation_loss"] == pytest.approx(
            model.eval()(**batch).loss.item(), rel=1e-5
        )


def test_the_last_conversations_of_a_list_are_held_out(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(
        "".join(json.dumps({"conversations": [f"ask {i}", "x"]}) + "\n" for i in range(9))
    )

    def read(**keys):
        own = FinetuneConfig(dataset=str(path), **keys)
        data = read_data(Config(), own.dataset, own.dataset_size, own.held_out)
        return [[one[0]["content"][4:] for one in part] for part in (data.train, data.validation)]

    assert read() == [list("012345678"), []]
    assert read(validation_size=2) == [list("0123456"), list("78")]
    assert read(validation_size=2, dataset_size=5) == [list("012"), list("34")]
    with pytest.raises(TaskError, match="holds them all out"):
        read(validation_size=9)
