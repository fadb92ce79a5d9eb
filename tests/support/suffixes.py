"""Suffixes of a few prompts on small models, whose last two MoE layers are re-routed,
and other probabilities for them."""

from typing import Any

import torch
from torch import Tensor

from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import PromptSuffix, SuffixReplay
from moe_lab.engine.token_span import TokenSpan
from moe_lab.routing import find_routers
from tests.support.brute_prompt_tail import prompts

BUDGET = Budget(64)
LAST_TOKEN = TokenSpan()


def changed_layers(model: Any) -> list[int]:
    """The last two MoE layers."""
    count = len(find_routers(model))
    return [count - 2, count - 1]


def read_suffixes(
    model: Any, span: TokenSpan = LAST_TOKEN, **options: Any
) -> tuple[SuffixReplay, list[PromptSuffix]]:
    """The suffixes of `prompts`, and what replays them."""
    replay = SuffixReplay(model, changed_layers(model)[0], span)
    return replay, replay.read(prompts(least=span.size), BUDGET, **options)


def other_probs(model: Any, suffixes: list[PromptSuffix], seed: int = 3) -> dict[int, Tensor]:
    """Random probabilities [questions, W, E] of each changed layer; other
    experts become the largest."""
    torch.manual_seed(seed)
    W, _, E = suffixes[0].pathway_WME.shape
    probs = {}
    for layer in changed_layers(model):
        probs[layer] = torch.rand(len(suffixes), W, E).softmax(dim=-1)
    return probs


def with_gradients(probs: dict[int, Tensor]) -> dict[int, Tensor]:
    """Leaves of a graph with these values."""
    leaves = {}
    for layer, values in probs.items():
        leaves[layer] = values.detach().clone().requires_grad_()
    return leaves


def own_probs(model: Any, suffixes: list[PromptSuffix]) -> dict[int, Tensor]:
    """The model's own probabilities [questions, W, E] of each changed layer."""
    probs = {}
    for layer in changed_layers(model):
        probs[layer] = torch.stack([suffix.pathway_WME[:, layer] for suffix in suffixes])
    return probs


def of_question(values_by_layer: dict[int, Tensor], question: int) -> dict[int, Tensor]:
    """[W, ...] of each layer."""
    return {layer: values[question] for layer, values in values_by_layer.items()}
