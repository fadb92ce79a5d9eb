"""The checked Trainer, trainings that runs share, and noise in training.

Broken by: a step after a loss or gradient that is NaN, one pass of several that is not checked, a loss of an earlier step
that is counted again, a model that answers for another one or is trained twice, a resume from a checkpoint that is
incomplete, a trained model that stays in memory; noise that depends on the batch, on its place there or on what ran
before; noise at temperature 0 or outside its pass; weights from noisy scores; a temperature of another sequence.
"""

import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from moe_lab.config.schema import Config
from moe_lab.errors import TrainingError
from moe_lab.methods.base import Base
from moe_lab.methods.trained import COMPLETE, Trained, last_checkpoint
from moe_lab.methods.trainer import MoeTrainer, RoutingNoise
from moe_lab.routing.hook import routed
from moe_lab.routing.noise import gumbel
from tests.support.command import run_command
from tests.support.models import make_model
from tests.support.routed_designs import LENGTH, Seen, biased_or
from tests.support.routed_designs import byte_rows as ids
from tests.support.tiers import by_family


class Line(nn.Module):
    """A loss of one number; `factor` is multiplied to the loss of each pass, `slope` to its gradient."""

    def __init__(self, factors: list[float], slopes: list[float]):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.factors, self.slopes = factors, slopes
        self.passes = 0

    def forward(self, x, labels=None):
        factor, slope = self.factors[self.passes], self.slopes[self.passes]
        self.passes += 1
        value = (self.weight * x.mean()).sum()
        value.register_hook(lambda gradient: gradient * slope)
        return SimpleNamespace(loss=value * factor)


class Watched(MoeTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = model(**inputs).loss
        return loss


def train(folder, factors=None, slopes=None, accumulation: int = 1):
    model = Line(factors or [1.0] * 6, slopes or [1.0] * 6)
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=6 // accumulation,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=accumulation,
        learning_rate=0.1,
        weight_decay=0.0,
        logging_nan_inf_filter=False,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        dataloader_pin_memory=False,
    )
    rows = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 6
    trainer = Watched(schedule=lambda step: 1.0, model=model, args=settings, train_dataset=rows)
    return trainer, model


def test_finite_losses_train_to_the_end(tmp_path):
    trainer, model = train(tmp_path, accumulation=2)
    trainer.train()
    assert trainer.state.global_step == 3 and model.passes == 6 and trainer.losses == []
    assert model.weight.item() < 0.8


@pytest.mark.parametrize(
    "numbers, accumulation, told, kept",
    [
        *(
            ({"factors": [1, 1, bad, 1, 1, 1]}, 1, f"The loss of training step 3 is {bad}", 0.8)
            for bad in (math.nan, math.inf, -math.inf)
        ),
        ({"factors": [1, 1, math.nan, 1, 1, 1]}, 2, "The loss of training step 2 is nan", 0.9),
        ({"factors": [math.inf, -math.inf, 1, 1, 1, 1]}, 2, "The loss of training step 1 is nan", 1.0),
        *(
            ({"slopes": [1, bad, 1, 1, 1, 1]}, 1, f"The gradient of training step 2 is {bad}", 0.9)
            for bad in (math.nan, math.inf)
        ),
    ],
    ids=str,
)
def test_it_stops_before_the_step_with_a_number_that_is_none(numbers, accumulation, told, kept, tmp_path):
    """One pass of several is enough: its first one, or infinities of both signs, which are no number together."""
    trainer, model = train(tmp_path, **numbers, accumulation=accumulation)
    with pytest.raises(TrainingError, match=f"{told}. Lower method.learning_rate"):
        trainer.train()
    assert model.weight.item() == pytest.approx(kept), "after the steps of Adam before it"


CONTENT = {"model": {"weights": "a"}, "commit": None, "data": "b", "recipe": {"epochs": 1}, "seed": 0}


def folder_of(config, content, trained):
    artifact = Trained.of(config, content, "model")

    def train(folder):
        trained.append(artifact.id)
        for name in ("model", "checkpoints"):
            (folder / name).mkdir(exist_ok=True)
        return {"steps": len(trained)}

    record = artifact.load_or_train(train)
    assert not (artifact.folder / "checkpoints").exists()
    assert record["id"] == trained[record["steps"] - 1]
    return artifact.folder


def test_a_training_is_made_for_other_content_and_where_something_is_gone(tmp_path, capsys):
    """Once each; it prints once where its model is. Checkpoints that a kill left go."""
    config, trained = Config(method=Base.Config(name="base"), output_dir=str(tmp_path)), []
    first = folder_of(config, CONTENT, trained)
    assert capsys.readouterr().err == f"Trained: {first / 'model'}\n"
    (first / "checkpoints").mkdir()
    assert folder_of(config, dict(CONTENT), trained) == first and len(trained) == 1
    assert capsys.readouterr().err == "", "it is not trained again"
    (first / "model").rmdir()
    assert folder_of(config, CONTENT, trained) == first and len(trained) == 2
    (first / "training.json").write_text('{"id": "of another"}')
    assert folder_of(config, CONTENT, trained) == first and len(trained) == 3
    others = {folder_of(config, CONTENT | {key: "other"}, trained) for key in CONTENT}
    assert len(others - {first}) == len(CONTENT) and len(trained) == 3 + len(CONTENT)


def test_what_a_training_leaves_in_reference_cycles_is_removed(tmp_path):
    seen = []

    class Node:
        def __init__(self):
            self.own = self
            seen.append(weakref.ref(self))

    def train(folder):
        (folder / "model").mkdir()
        return {"steps": len([Node()])}

    config = Config(method=Base.Config(name="base"), output_dir=str(tmp_path))
    Trained.of(config, CONTENT, "model").load_or_train(train)
    assert seen[0]() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "method=finetune-freeze method.dataset_size=8 method.validation_size=1 method.max_steps=3",
        "method=pretrain method.steps=2 method.layers=1 method.validation_rows=2",
    ],
)
def test_a_training_that_diverges_ends_in_one_message(capsys, tmp_path, line):
    """A learning rate of 1e30 is a valid number."""
    ended = run_command(
        capsys,
        *(*line.split(), "method.learning_rate=1e30", "model=tiny", "task=toy_choice", "limit=2"),
        *("device=cpu", f"output_dir={tmp_path}"),
    )
    assert ended.code == 1, ended.err
    assert "Traceback" not in ended.err and ended.err.count("Error: ") == 1
    assert not list(tmp_path.glob("models/*/training.json"))


def test_the_newest_complete_one_is_the_last(tmp_path):
    assert last_checkpoint(tmp_path / "none") is None
    checkpoints = {step: tmp_path / f"checkpoint-{step}" for step in (9, 10, 11)}
    for step, checkpoint in checkpoints.items():
        checkpoint.mkdir()
        if step < 11:
            (checkpoint / COMPLETE).touch()
    assert last_checkpoint(tmp_path) == checkpoints[10], "by number, and the eleventh was cut off"


# Noise


@pytest.fixture(params=["biased", *by_family(("olmoe", "deepseek", "deepseek_v3", "gpt_oss"))])
def model(request):
    return biased_or(request.param)


@torch.no_grad()
def passed(model, rows: list[int], temperature: list[float], seed: int = 3) -> tuple[Tensor, Seen]:
    """Logits of the rows (`rows` are their numbers), and what came out of the routers."""
    numbers, temperatures = torch.tensor(rows), torch.zeros(8)
    temperatures[numbers] = torch.tensor(temperature)
    noise, seen = RoutingNoise(seed, temperatures), Seen()
    with routed(model, noise), routed(model, seen), noise.noisy(numbers, LENGTH):
        logits = model(ids(8)[numbers], use_cache=False).logits
    return logits, seen


def first_choices(model, *args, **options) -> Tensor:
    """[rows, LENGTH, K]: the experts that the first router chose."""
    return passed(model, *args, **options)[1].routings[0].index_TK.unflatten(0, (-1, LENGTH))


def test_temperature_0_is_no_noise_bit_for_bit(model):
    with torch.no_grad():
        plain = model(ids(8)[:3], use_cache=False).logits
    assert torch.equal(passed(model, [0, 1, 2], [0.0, 0.0, 0.0])[0], plain)


def test_outside_its_pass_there_is_none_even_after_an_error(olmoe):
    noise = RoutingNoise(0, torch.tensor([5.0]))
    with routed(olmoe, noise), torch.no_grad():
        with pytest.raises(KeyboardInterrupt), noise.noisy(torch.arange(1), LENGTH):
            noisy = olmoe(ids(1), use_cache=False).logits
            raise KeyboardInterrupt
        after = olmoe(ids(1), use_cache=False).logits
    with torch.no_grad():
        plain = olmoe(ids(1), use_cache=False).logits
    assert torch.equal(after, plain) and not torch.equal(noisy, plain)


def test_the_choice_is_that_of_the_formula_and_the_weights_are_clean(model):
    """Scores plus temperature times keyed noise of (seed, row, position, layer), by a loop over tokens."""
    rows, temperature = [5, 2, 1], [0.5, 1.5, 0.0]
    _, seen = passed(model, rows, temperature, seed=7)
    for number, (router, own) in enumerate(zip(seen.routers, seen.routings, strict=True)):
        k, experts = own.index_TK.shape[1], own.logits_TE.shape[1]
        for batch, row in enumerate(rows):
            noise = gumbel(7, row, 0, 1, number, range(LENGTH), experts)
            for position in range(LENGTH):
                token = batch * LENGTH + position
                scores = router.scores(own.logits_TE[token : token + 1])
                index = router.choose(scores + temperature[batch] * noise[position], k)
                assert index[0].tolist() == own.index_TK[token].tolist()
        expected = router.weights(own.logits_TE, own.index_TK)
        torch.testing.assert_close(own.weights_TK, expected.to(own.weights_TK.dtype), rtol=0, atol=0)


def test_noise_is_that_of_the_row_wherever_it_is(olmoe):
    """Among others, alone, again after another pass; of another seed or row it is another."""
    together, alone = first_choices(olmoe, [4, 6], [2.0, 3.0]), first_choices(olmoe, [6], [3.0])
    assert torch.equal(together[1], alone[0])
    assert torch.equal(first_choices(olmoe, [6, 4], [3.0, 2.0]).flip(0), together)
    assert not torch.equal(first_choices(olmoe, [6], [3.0], seed=4), alone)


def test_gradients_reach_the_router_through_the_clean_weights():
    model, noise = make_model("olmoe"), RoutingNoise(0, torch.tensor([1.0, 2.0]))
    with routed(model, noise), noise.noisy(torch.arange(2), LENGTH):
        model(ids(2), labels=ids(2), use_cache=False).loss.backward()
    for layer in model.model.layers:
        assert layer.mlp.gate.weight.grad.abs().max() > 0


def drawn(seed: int, highest: float, schedule: str = "constant", step: int = 0) -> Tensor:
    noise = RoutingNoise.of(seed, highest, schedule, steps=4, sequences=4000)
    assert noise is not None
    return noise.temperatures(torch.arange(4000), step)


def test_temperatures_are_uniform_and_of_the_seed():
    """Of 4000 rows: the mean is within 0.04 of 1, but for odds of 1 in 10^5."""
    own = drawn(5, 2.0)
    assert own.dtype == torch.float32 and 0 <= own.min() < 0.01 and 1.99 < own.max() <= 2.0
    assert own.mean().item() == pytest.approx(1.0, abs=0.04)
    assert torch.equal(own, drawn(5, 2.0)) and torch.equal(own, 2 * drawn(5, 1.0))
    assert not torch.equal(own, drawn(6, 2.0))
