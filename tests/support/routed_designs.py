"""Designs whose routers differ clearly, and what their routers decided."""

from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from moe_lab.methods.pretrain.design import architecture
from moe_lab.models.designs.configuration import UNITS
from moe_lab.models.designs.units import unit_tables
from moe_lab.routing import Router, Routing
from tests.support.models import make_tokenizer, small_model
from tests.support.pretrainings import design


@cache
def made(router: str, **settings: Any) -> Any:
    """A design with random weights, wide enough that routers differ clearly."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = architecture(design(router=router, **settings), tokenizer)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "bias" in name or (tensor.dim() > 1 and tensor.is_floating_point()):
                tensor.normal_(0, 0.2)
    if router in UNITS:
        model.set_units(unit_tables(tokenizer, router))
    return model


LENGTH = 9


def biased_or(family: str) -> Any:
    """A small model, or for `biased` a design with a selection bias that is not zero."""
    return made("token", bias_rate=0.1) if family == "biased" else small_model(family)


def byte_rows(rows: int) -> torch.Tensor:
    """[rows, LENGTH] random bytes."""
    return torch.randint(0, 256, (rows, LENGTH), generator=torch.Generator().manual_seed(1))


class Seen:
    """A policy that keeps what the routers decided, after the policies outside it."""

    def __init__(self) -> None:
        self.routers: list[Router] = []
        self.routings: list[Routing] = []

    def __call__(self, router: Router, routing: Routing) -> None:
        self.routers.append(router)
        self.routings.append(routing)
