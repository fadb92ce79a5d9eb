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
BACKBONES: dict[str, dict[str, Any]] = {
    "olmoe": dict(backbone="olmoe"),
    "deepseek": dict(backbone="deepseek", first_k_dense_replace=1),
}


def design(router: str, units: Any = "arbitrary", **changes: Any) -> Any:
    """A design in float32; every call returns a new copy.

    Its words or sentences are arbitrary (a third of all tokens begin one, kinds are mixed), or as `units`, a `UnitTables`.
    """
    model = build("moe_design", COMMON | dict(router=router) | changes)
    if model.model.units is not None:
        model.set_units(arbitrary_units() if isinstance(units, str) else units)
    return model


def arbitrary_units() -> Any:
    """Tables without a tokenizer; token 256 is special, and some tokens are transparent."""
    from moe_lab.models.designs.units import KINDS, SPECIAL, TRANSPARENT, UnitTables

    generator = torch.Generator().manual_seed(3)
    kind_V = torch.randint(1, KINDS, (VOCAB,), generator=generator, dtype=torch.int8)
    kind_V[torch.rand(VOCAB, generator=generator) < 0.1] = TRANSPARENT
    begins_CV = torch.rand(KINDS, VOCAB, generator=generator) < 1 / 3
    kind_V[256], begins_CV[SPECIAL], begins_CV[:, 256] = SPECIAL, True, True
    return UnitTables(kind_V, begins_CV)


def unit_starts(tables: Any, ids: list[int]) -> list[int]:
    """The position of the first token of each token's unit, one token after the other."""
    kinds, begins = tables.kind_V.tolist(), tables.begins_CV.tolist()
    starts, behind = [], 0
    for position, token in enumerate(ids):
        starts.append(position if begins[behind][token] or not starts else starts[-1])
        behind = behind if kinds[token] == -1 else kinds[token]
    return starts


def slow_moe(block: Any, config: Any, hidden_SH: Tensor, starts: list[int] | None = None) -> Tensor:
    """The block's output for one sequence without padding, in float64.

    Args:
        starts: `unit_starts` of words or sentences; None: token or expert choice.
    """
    weights = {name: tensor.double() for name, tensor in block.state_dict().items()}
    hidden = hidden_SH.double()
    scores = [softmax((weights["gate.weight"] @ hidden[t]).tolist()) for t in range(len(hidden))]
    if config.router == "expert":
        chosen = experts_choose(scores, config)
    else:
        bias = weights["gate.selection_bias"].tolist() if config.selection_bias else None
        chosen = [tokens_choose(scores[t], config, bias) for t in (starts or range(len(hidden)))]
    out = torch.zeros_like(hidden)
    for t, experts in enumerate(chosen):
        for expert, weight in experts.items():
            up = weights["experts.gate_up_proj"][expert]
            out[t] += weight * mlp(hidden[t], *up.chunk(2), weights["experts.down_proj"][expert])
        if config.n_shared_experts:
            shared = [
                weights[f"shared_experts.{part}_proj.weight"] for part in ("gate", "up", "down")
            ]
            out[t] += mlp(hidden[t], *shared)
    return out


def softmax(logits: list[float]) -> list[float]:
    powers = [math.exp(value - max(logits)) for value in logits]
    return [power / sum(powers) for power in powers]


def tokens_choose(scores: list[float], config: Any, bias: list[float] | None) -> dict[int, float]:
    """Weight by chosen expert of one token."""
    by = scores if bias is None else [score + b for score, b in zip(scores, bias, strict=True)]
    chosen = sorted(range(len(scores)), key=lambda expert: -by[expert])[
        : config.num_experts_per_tok
    ]
    total = sum(scores[expert] for expert in chosen) if config.norm_topk_prob else 1
    return {expert: scores[expert] / total for expert in chosen}


def experts_choose(scores: list[list[float]], config: Any) -> list[dict[int, float]]:
    """Weight by expert, of each token."""
    tokens, experts = len(scores), config.n_routed_experts
    share = config.capacity_factor * tokens * config.num_experts_per_tok / experts
    capacity = min(tokens, max(1, math.ceil(share)))
    chosen: list[dict[int, float]] = [{} for _ in scores]
    for expert in range(experts):
        for token in sorted(range(tokens), key=lambda t: -scores[t][expert])[:capacity]:
            chosen[token][expert] = scores[token][expert]
    return chosen


def mlp(hidden: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    activated = gate @ hidden
    return down @ (activated * torch.sigmoid(activated) * (up @ hidden))


def parts(pieces: list[str]) -> list[int]:
    """The places between pieces of a text, as offsets."""
    return list(accumulate(map(len, pieces)))[:-1]
