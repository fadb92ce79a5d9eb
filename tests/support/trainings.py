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
    """Rows of `length`, `length` - 1 and `length` - 2 random tokens; all tokens are trained on."""
    generator = torch.Generator().manual_seed(0)
    ids_by_row = torch.randint(1, VOCAB - 1, (count, length), generator=generator).tolist()
    made = []
    for number, ids in enumerate(ids_by_row):
        ids = ids[: length - number % 3]
        made.append(Row(ids, ids))
    return made


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
    if model is not None:
        config = replace(config, model=ModelConfig(path=str(model)))
    all_rows = rows(count + held_out)
    return FinetuningInputs(
        config=config,
        folder=folder,
        rows=all_rows[:count],
        validation=all_rows[count:],
        pad_token=0,
        dtype=dtype,
    )


def train(model: Any, folder: Path, **settings: Any) -> dict[str, Any]:
    """Fine-tune the model in place."""
    _, training_info = finetune(training_of(folder, **settings), model)
    return training_info


def names_by_group(model: Any) -> dict[str, set[str]]:
    """The names of the parameters in each group that can be frozen."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    names: dict[str, set[str]] = {}
    for group, parameters in parameter_groups(model).items():
        names[group] = {name_of[id(parameter)] for parameter in parameters}
    return names


@contextmanager
def interrupted(done: int, what: str | None = None) -> Iterator[None]:
    """A training in this context stops at the first number that is checked
    after `done` optimizer steps.

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


def assert_same(first: Any, second: Any) -> None:
    """The tensors of two models or state dictionaries are equal byte by byte."""
    first_tensors = tensors_of(first)
    second_tensors = tensors_of(second)
    assert first_tensors.keys() == second_tensors.keys()
    for name, tensor in first_tensors.items():
        assert torch.equal(bytes_of(tensor), bytes_of(second_tensors[name])), name


def tensors_of(model_or_tensors: Any) -> dict[str, torch.Tensor]:
    if isinstance(model_or_tensors, dict):
        return model_or_tensors
    return model_or_tensors.state_dict()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
