"""Small designs with random weights, and their MoE block written out as loops in float64.

The reference shares nothing with `moe_lab`: it reads weights by their names.
"""

import math
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from tests.support import families
from tests.support.families import VOCAB
from tests.support.models import build

COMMON = families.COMMON | dict(intermediate_size=40, num_hidden_layers=3, n_routed_experts=5)
del COMMON["num_experts"], COMMON["num_local_experts"]
TRANSPARENT_KIND = -1
"""Tokens of this kind do not count as the token before another one."""
BACKBONES: dict[str, dict[str, Any]] = {
    "olmoe": dict(backbone="olmoe"),
    "deepseek": dict(backbone="deepseek", first_k_dense_replace=1),
}


def design(router: str, units: Any = "arbitrary", **changes: Any) -> Any:
    """A design in float32; every call returns a new copy.

    Its words or sentences are arbitrary (a third of all tokens begin one, kinds are mixed),
    or as `units`, a `UnitTables`.
    """
    model = build("moe_design", COMMON | dict(router=router) | changes)
    if model.model.units is None:
        return model
    if units == "arbitrary":
        units = arbitrary_units()
    model.set_units(units)
    return model


def arbitrary_units() -> Any:
    """Tables without a tokenizer; token 256 is special, and some tokens are transparent."""
    from moe_lab.models.designs.units import KINDS, SPECIAL, TRANSPARENT, UnitTables

    generator = torch.Generator().manual_seed(3)
    kind_V = torch.randint(1, KINDS, (VOCAB,), generator=generator, dtype=torch.int8)
    kind_V[torch.rand(VOCAB, generator=generator) < 0.1] = TRANSPARENT
    begins_CV = torch.rand(KINDS, VOCAB, generator=generator) < 1 / 3
    kind_V[256] = SPECIAL
    begins_CV[SPECIAL] = True
    begins_CV[:, 256] = True
    return UnitTables(kind_V, begins_CV)


def unit_starts(tables: Any, ids: list[int]) -> list[int]:
    """The position of the first token of each token's unit, one token after the other."""
    kinds = tables.kind_V.tolist()
    begins = tables.begins_CV.tolist()
    starts: list[int] = []
    kind_before = 0
    for position, token in enumerate(ids):
        if not starts or begins[kind_before][token]:
            starts.append(position)
        else:
            starts.append(starts[-1])
        if kinds[token] != TRANSPARENT_KIND:
            kind_before = kinds[token]
    return starts


def slow_moe(block: Any, config: Any, hidden_SH: Tensor, starts: list[int] | None = None) -> Tensor:
    """The block's output for one sequence without padding, in float64.

    Args:
        starts: `unit_starts` of words or sentences; None: token or expert choice.
    """
    weights = {name: tensor.double() for name, tensor in block.state_dict().items()}
    hidden = hidden_SH.double()
    experts_by_token = slow_choice(weights, hidden, config, starts)
    out = torch.zeros_like(hidden)
    for t, expert_weights in enumerate(experts_by_token):
        for expert, expert_weight in expert_weights.items():
            gate, up = weights["experts.gate_up_proj"][expert].chunk(2)
            down = weights["experts.down_proj"][expert]
            out[t] += expert_weight * mlp(hidden[t], gate, up, down)
        if config.n_shared_experts:
            gate = weights["shared_experts.gate_proj.weight"]
            up = weights["shared_experts.up_proj.weight"]
            down = weights["shared_experts.down_proj.weight"]
            out[t] += mlp(hidden[t], gate, up, down)
    return out


def slow_choice(
    weights: dict[str, Tensor], hidden: Tensor, config: Any, starts: list[int] | None
) -> list[dict[int, float]]:
    """{expert: weight} of each token. Tokens of one unit take the experts of its first token."""
    scores = []
    for t in range(len(hidden)):
        logits = weights["gate.weight"] @ hidden[t]
        scores.append(softmax(logits.tolist()))
    if config.router == "expert":
        return experts_choose(scores, config)
    bias = None
    if config.selection_bias:
        bias = weights["gate.selection_bias"].tolist()
    deciding_tokens = range(len(hidden)) if starts is None else starts
    return [tokens_choose(scores[t], config, bias) for t in deciding_tokens]


def softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    powers = [math.exp(value - largest) for value in logits]
    total = sum(powers)
    return [power / total for power in powers]


def largest_first(values: list[float]) -> list[int]:
    """The indices of values, the largest value first; of equal ones the first."""
    return sorted(range(len(values)), key=lambda index: -values[index])


def tokens_choose(scores: list[float], config: Any, bias: list[float] | None) -> dict[int, float]:
    """Weight by chosen expert of one token."""
    selection = scores
    if bias is not None:
        selection = [score + shift for score, shift in zip(scores, bias, strict=True)]
    experts = largest_first(selection)[: config.num_experts_per_tok]
    total = 1.0
    if config.norm_topk_prob:
        total = sum(scores[expert] for expert in experts)
    return {expert: scores[expert] / total for expert in experts}


def experts_choose(scores: list[list[float]], config: Any) -> list[dict[int, float]]:
    """Weight by expert, of each token."""
    tokens = len(scores)
    experts = config.n_routed_experts
    share = config.capacity_factor * tokens * config.num_experts_per_tok / experts
    capacity = min(tokens, max(1, math.ceil(share)))
    weights: list[dict[int, float]] = [{} for _ in scores]
    for expert in range(experts):
        scores_of_expert = [token_scores[expert] for token_scores in scores]
        for token in largest_first(scores_of_expert)[:capacity]:
            weights[token][expert] = scores[token][expert]
    return weights


def mlp(hidden: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    activated = gate @ hidden
    return down @ (activated * torch.sigmoid(activated) * (up @ hidden))


def parts(pieces: list[str]) -> list[int]:
    """The places between pieces of a text, as offsets."""
    ends = accumulate(len(piece) for piece in pieces)
    return list(ends)[:-1]
