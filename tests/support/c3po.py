"""Small random models with the tails of a few prompts, as the optimizers take them."""

from dataclasses import dataclass
from typing import Any

import torch

from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import PromptSuffix, SuffixReplay
from moe_lab.engine.token_span import TokenSpan
from moe_lab.methods.c3po.descent import NeighbourLoss
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.routing import find_routers
from tests.support.brute_prompt_tail import prompts

WEIGHT_NK = torch.tensor([[1.0, 0.5, 0.2], [0.3, 0.0, 0.9], [0.0, 0.0, 0.0]])
"""Of three questions; the second has two neighbours, the third none."""
ANSWERS = [[11], [22], [33], [44], [55]]
"""Right answers of the references."""
LONG_ANSWERS = [[11, 12, 13], [22], [33, 34, 35], [44, 45, 46], [55, 5]]
CORE = 5


@dataclass
class Setting:
    """Three questions and five references of unlike lengths."""

    model: torch.nn.Module
    layers: list[int]
    tails: SuffixReplay
    questions: list[PromptSuffix]
    references: list[PromptSuffix]

    @property
    def pathway_NWME(self) -> torch.Tensor:
        return torch.stack([tail.pathway_WME for tail in self.questions])

    def pathways(self, core: int | None = CORE) -> Pathways:
        return Pathways(self.pathway_NWME, self.layers, core)

    @property
    def neighbours(self) -> list[list[PromptSuffix | None]]:
        a, b, c, d, e = self.references
        return [[a, b, c], [d, None, e], [None, None, None]]

    def loss(self, kind: str = "cross_entropy", rows: slice = slice(None)) -> NeighbourLoss:
        return NeighbourLoss(self.tails, self.neighbours[rows], WEIGHT_NK[rows], kind)


def setting_of(
    model: torch.nn.Module, span: TokenSpan | None = None, answers: Any = ANSWERS
) -> Setting:
    count = len(find_routers(model))
    layers = [count - 2, count - 1]
    tails = SuffixReplay(model, layers[0], span)
    budget = Budget(64)
    least = tails.span.size
    questions = tails.read(prompts(seed=2, least=least)[:3], budget)
    references = tails.read(prompts(seed=1, least=least), budget, [[answer] for answer in answers])
    return Setting(model, layers, tails, questions, references)
