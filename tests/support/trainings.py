"""Short fine-tunings of small models with random weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.parameter_groups import parameter_groups
from moe_lab.methods.finetune_freeze.training import FinetuningInputs, finetune
from moe_lab.methods.tokenized import Row
from moe_lab.methods.trainer import MoeTrainer
from tests.support.families import VOCAB

SETTINGS: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 2,
    "gradient_accumulation": 1,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,
    "save_steps": 1000,
}


def rows(count: int, length: int = 10) -> list[Row]:
    ids = torch.randint(
        1, VOCAB - 1, (count, length), generator=torch.Generator().manual_seed(0)
    ).tolist()
    return [
        Row(each[: length - number % 3], each[: length - number % 3])
        for number, each in enumerate(ids)
    ]


def config_of(**settings: Any) -> Config:
    return Config(method=FinetuneConfig(**(SETTINGS | settings)), device="cpu")


def training_of(
    folder: Path,
    count: int = 12,
    dtype: str = "float32",
    held_out: int = 0,
    model: Path | None = None,
    **settings: Any,
) -> FinetuningInputs:
    """`count` rows, in batches of 2."""
    folder.mkdir(exist_ok=True, parents=True)
    config = config_of(**settings)
    made = rows(count + held_out)
    return FinetuningInputs(
        config=replace(config, model=ModelConfig(path=model and str(model))),
        folder=folder,
        rows=made[:count],
        validation=made[count:],
        pad_token=0,
        dtype=dtype,
    )


def train(model: Any, folder: Path, **settings: Any) -> dict[str, Any]:
    """Fine-tune the model in place."""
    return finetune(training_of(folder, **settings), model)[1]


def names_by_group(model: Any) -> dict[str, set[str]]:
    """The names of the parameters in each group that can be frozen."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        key: {names[id(own)] for own in group} for key, group in parameter_groups(model).items()
    }


@contextmanager
def interrupted(done: int, what: str | None = None) -> Iterator[None]:
    """A training in this context stops at the first number that is checked after `done` optimizer steps.

    Args:
        what: "loss", "gradient" or "validation loss": the first such number instead.
    """
    check = MoeTrainer._check

    def stop(self: Any, value: Any, name: str, step: int) -> None:
        check(self, value, name, step)
        if self.state.global_step == done and what in (None, name):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(MoeTrainer, "_check", stop)
        yield


def assert_same(one: Any, other: Any) -> None:
    """The tensors of two models or state dictionaries are equal byte by byte."""
    one, other = (each if isinstance(each, dict) else each.state_dict() for each in (one, other))
    assert one.keys() == other.keys()
    for name, value in one.items():
        parts = (each.detach().reshape(-1).view(torch.uint8) for each in (value, other[name]))
        assert torch.equal(*parts), name
