"""Training virtual tokens.

Broken by: a resumed training that ends in another adapter, a loss that counts the prompt or padding, an epoch that
leaves questions out, base weights that change or stay frozen afterwards, a loss that is no number and goes on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal

import pytest
import torch

from moe_lab.errors import MoeLabError
from moe_lab.methods.virtual_tokens import training
from moe_lab.methods.virtual_tokens.adapters import with_adapter
from moe_lab.methods.virtual_tokens.training import Example, Recipe, answer_loss, train
from tests.support import rounding
from tests.support.models import small_model

KINDS = ("soft-prompt", "prefix-tuning")
RECIPE = Recipe(learning_rate=0.05, epochs=2, batch_size=2, seed=0)


def examples() -> list[Example]:
    def draw(count: int, seed: int) -> list[int]:
        return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()

    return [Example(draw(4 + 3 * i, i), draw(1 + i % 3, 50 + i)) for i in range(5)]


def trained(kind: str, folder, model=None) -> dict[str, torch.Tensor]:
    folder.mkdir(exist_ok=True)
    with with_adapter(model or small_model("olmoe"), kind, 4, seed=0) as wrapped:
        train(wrapped, examples(), RECIPE, folder)
        return {name: tensor.clone() for name, tensor in wrapped.prompt_encoder.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def _killed_at_step_4(kind: str, folder) -> None:
    def step(wrapped, optimizer, batch, number):
        if number == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(wrapped, optimizer, batch, number)

    whole, training._step, training.SAVE_SECONDS = training._step, step, 0.0
    trained(kind, folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_continues_to_the_same_adapter(kind, tmp_path, monkeypatch, capsys):
    expected = trained(kind, tmp_path / "whole")
    child = multiprocessing.get_context("fork").Process(
        target=_killed_at_step_4, args=(kind, tmp_path / "cut")
    )
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    done = []
    step = training._step
    monkeypatch.setattr(training, "_step", lambda *args: done.append(args[3]) or step(*args))
    assert same(trained(kind, tmp_path / "cut"), expected)
    assert done == [4, 5]
    assert "cut: training, continuing at step 4 of 6\n" in capsys.readouterr().err
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]
    assert [json.loads(line)["step"] for line in logs[0].splitlines()] == list(range(6))


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_is_untouched(kind, tmp_path):
    model = small_model("mixtral")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attributes = set(vars(model)), set(vars(model.config)), [p.requires_grad for p in model.parameters()]
    first = trained(kind, tmp_path / "a", model)
    with with_adapter(model, kind, 4, seed=0) as wrapped:
        assert not same(first, wrapped.prompt_encoder.state_dict()), "training changes the adapter"
    assert same(model.state_dict(), before)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    after = set(vars(model)), set(vars(model.config)), [p.requires_grad for p in model.parameters()]
    assert after == attributes


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_answers_tokens_alone(kind):
    """Padded together, the mean over all answer tokens of the questions one by one."""
    batch = examples()
    with with_adapter(small_model("qwen3_moe"), kind, 4, seed=0) as wrapped:
        together = answer_loss(wrapped, batch).item()
        alone = [answer_loss(wrapped, [example]).item() * len(example.answer) for example in batch]
    assert together == rounding.approx(sum(alone) / sum(len(example.answer) for example in batch))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_equals_finite_differences(kind):
    from copy import deepcopy

    batch = examples()[:2]
    exact = deepcopy(small_model("olmoe")).double()
    exact.set_experts_implementation("eager")
    with with_adapter(exact, kind, 2, seed=0) as wrapped:
        adapter = wrapped.prompt_encoder["default"].embedding
        adapter.weight.data = adapter.weight.data.double()
        answer_loss(wrapped, batch).backward()
        gradient = adapter.weight.grad
        place = divmod(int(gradient.abs().argmax()), gradient.shape[1])
        values = []
        for step in (1e-3, -1e-3):
            with torch.no_grad():
                adapter.weight[place] += step
                values.append(answer_loss(wrapped, batch).item())
                adapter.weight[place] -= step
    assert gradient[place].item() == pytest.approx((values[0] - values[1]) / 2e-3, rel=1e-2)


def test_another_seed_is_another_adapter_and_leaves_the_generator_alone():
    model, drawn = small_model("olmoe"), []
    state = torch.get_rng_state()
    for seed in (0, 0, 1):
        with with_adapter(model, "prefix-tuning", 4, seed) as wrapped:
            drawn.append(wrapped.prompt_encoder.state_dict())
    assert same(drawn[0], drawn[1]) and not same(drawn[0], drawn[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_an_epoch_takes_every_question_once_in_an_order_of_its_own():
    epochs = [[RECIPE.batch(step, 5) for step in steps] for steps in (range(3), range(3, 6))]
    assert RECIPE.steps(5) == 6
    for epoch in epochs:
        assert sorted(i for batch in epoch for i in batch) == list(range(5))
    assert epochs[0] != epochs[1]
    assert [RECIPE.rate(step, 5) for step in (0, 3)] == pytest.approx([0.05, 0.025])


def test_a_loss_that_is_no_number_ends_it(tmp_path):
    recipe = Recipe(learning_rate=1e30, epochs=5, batch_size=2, seed=0)
    with (
        with_adapter(small_model("olmoe"), "soft-prompt", 4, seed=0) as wrapped,
        pytest.raises(MoeLabError, match=r"(?s)loss of training step \d+ is nan.*Lower method.learning_rate"),
    ):
        train(wrapped, examples(), recipe, tmp_path)
