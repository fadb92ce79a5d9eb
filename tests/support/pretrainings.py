"""Short pre-trainings of small designs on random rows."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from moe_lab.config.schema import Config
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.method import Pretrain
from moe_lab.methods.pretrain.training import PretrainingInputs, train
from tests.support.models import make_tokenizer

GRANULARITIES = (
    (2, 8, 0),
    (4, 16, 0),
    (8, 32, 0),
    (16, 64, 0),
    (1, 7, 1),
    (3, 15, 1),
    (7, 31, 1),
    (15, 63, 1),
)
"""The paper's, in Table 6: (experts of a token, routed experts, shared experts)."""
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "layers": 2,
    "heads": 4,
    "active_size": 32,
    "steps": 4,
    "batch_size": 2,
    "sequence_length": 12,
    "validation_rows": 3,
    "save_steps": 1000,
}


def by_loops(name: str, logits_TE: Tensor, index_TK: Tensor, devices: int = 1) -> Tensor:
    """The balance_loss, z_loss or device_loss of a layer, by loops over tokens and experts."""
    if name == "z_loss":
        return z_loss(logits_TE)
    tokens, experts = logits_TE.shape
    choices = index_TK.flatten().tolist()
    f = [choices.count(expert) / tokens for expert in range(experts)]
    p_E = logits_TE.softmax(-1).mean(0)
    if name == "balance_loss":
        return balance_loss(f, p_E)
    assert name == "device_loss"
    return device_loss(f, p_E, index_TK.shape[1], devices)


def z_loss(logits_TE: Tensor) -> Tensor:
    total = torch.zeros(())
    for logits_E in logits_TE:
        total = total + logits_E.exp().sum().log() ** 2
    return total / len(logits_TE)


def balance_loss(f: list[float], p_E: Tensor) -> Tensor:
    """`f` is the share of the tokens that choose an expert, `p_E` its mean probability."""
    total = torch.zeros(())
    for expert, share in enumerate(f):
        total = total + share * p_E[expert]
    return total


def device_loss(f: list[float], p_E: Tensor, k: int, devices: int) -> Tensor:
    """The balance of devices, each of which holds as many experts."""
    experts = len(f)
    size = experts // devices
    total = torch.zeros(())
    for device in range(devices):
        experts_of_device = range(size * device, size * (device + 1))
        load = sum(experts / k * f[expert] for expert in experts_of_device) / size
        probability = sum(p_E[expert] for expert in experts_of_device)
        total = total + load * probability
    return total


def design(**settings: Any) -> PretrainConfig:
    return Pretrain.Config(**(SMALL | settings))


def rows(count: int, length: int = 12, seed: int = 0) -> Any:
    """int32 [count, length]: random tokens of the byte tokenizer."""
    return np.random.default_rng(seed).integers(0, 256, (count, length), dtype=np.int32)


def training_of(
    folder: Path, count: int = 16, seed: int = 0, dtype: str = "float32", **settings
) -> PretrainingInputs:
    folder.mkdir(parents=True, exist_ok=True)
    method = design(**settings)
    return PretrainingInputs(
        config=Config(method=method, seed=seed, device="cpu"),
        folder=folder,
        tokenizer=make_tokenizer(),
        rows=rows(count, method.sequence_length),
        held_out=rows(method.validation_rows, method.sequence_length, seed=1),
        dtype=dtype,
    )


def pretrain_in_turn(trainings: dict[Path, dict[str, Any]]) -> None:
    """The work of each of two processes: train each design and store what
    this process's model holds."""
    dist.init_process_group("gloo")
    for folder, settings in trainings.items():
        weights = train(training_of(folder, **settings)).model.state_dict()
        torch.save(weights, folder / f"rank{os.environ['RANK']}.pt")
    dist.destroy_process_group()
