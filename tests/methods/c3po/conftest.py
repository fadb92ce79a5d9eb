"""Small random models with the last tokens of a few prompts, as the optimizers take them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from moe_lab.engine.prompt_tails import PromptTail, PromptTails
from moe_lab.engine.scoring import Budget
from moe_lab.methods.c3po.loss import NeighbourLoss
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.routing import find_routers
from tests.engine.brute_prompt_tail import FAMILIES, prompts
from tests.families.zoo import small_model

WEIGHT_NK = torch.tensor([[1.0, 0.5, 0.2], [0.3, 0.0, 0.9], [0.0, 0.0, 0.0]])
"""Of three questions; the second has two neighbours, the third none."""
GOLD = [[11, 22, 33], [44, 0, 55], [0, 0, 0]]
CORE = 5


@dataclass
class Setting:
    """Three questions and five reference prompts of unlike lengths."""

    model: torch.nn.Module
    layers: list[int]
    tails: PromptTails
    questions: list[PromptTail]
    references: list[PromptTail]

    @property
    def pathway_NME(self) -> torch.Tensor:
        return torch.stack([token.pathway_ME for token in self.questions])

    def pathways(self, core: int | None = CORE) -> Pathways:
        return Pathways(self.pathway_NME, self.layers, core)

    @property
    def neighbours(self) -> list[list[PromptTail | None]]:
        a, b, c, d, e = self.references
        return [[a, b, c], [d, None, e], [None, None, None]]

    def loss(self, kind: str = "cross_entropy", rows: slice = slice(None)) -> NeighbourLoss:
        return NeighbourLoss(self.tails, self.neighbours[rows], GOLD[rows], WEIGHT_NK[rows], kind)


def setting_of(model: torch.nn.Module) -> Setting:
    torch.set_num_threads(1)
    count = len(find_routers(model))
    layers = [count - 2, count - 1]
    tails = PromptTails(model, layers[0])
    budget = Budget(64)
    return Setting(
        model, layers, tails, tails.read(prompts(seed=2)[:3], budget), tails.read(prompts(seed=1), budget)
    )


@pytest.fixture(params=FAMILIES)
def setting(request) -> Setting:
    return setting_of(small_model(request.param))


@pytest.fixture
def olmoe() -> Setting:
    return setting_of(small_model("olmoe"))
