"""A faster computation of experts on a CPU for few tokens per expert, as in decoding and in RoE's
routing samples.

With few tokens the time is that of reading the experts' weights. In float32, weights times tokens
(instead of tokens times weights, as in `grouped_mm` on a CPU) reads them up to twice as fast; see
`docs/benchmarks.md`. `grouped_mm` takes the other cases: bfloat16, where it is up to twice as fast,
and experts with biases or in other layouts.

S = token-expert pairs, E = experts, K = experts per token, H = hidden size.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from moe_lab.errors import ConfigError
from moe_lab.models.auto_class import experts_option
from moe_lab.models.transformers_internals import experts_of

NAME = "weights_first"
MAX_TOKENS_PER_EXPERT = 10
"""Mean tokens per expert up to which this is faster than `grouped_mm` (measured: 8 is, 16 is
not)."""
ONE_MORE_IS_FASTER = (1, 3)
"""Numbers of rows that are faster with one row duplicated (measured: 1 by a third to a half, 3 by a
fifth)."""
MOST_WEIGHTS_FIRST = 10
"""Rows up to which weights times rows is faster than rows times weights (measured: 12 is not)."""


def weights_first_experts_forward(
    experts: Any, hidden_TH: Tensor, index_TK: Tensor, weights_TK: Tensor
) -> Tensor:
    """The sum of each token's experts, [T, H]; the same as `grouped_mm` up to rounding."""
    if not _applies(experts, hidden_TH, index_TK):
        return grouped_mm_experts_forward(experts, hidden_TH, index_TK, weights_TK)
    expert_S, order_S = index_TK.reshape(-1).sort()
    counts = torch.bincount(expert_S, minlength=experts.num_experts).tolist()
    hidden_SH = hidden_TH[order_S // index_TK.shape[-1]]
    gate_up = _by_expert(experts.gate_up_proj, hidden_SH, counts)
    out_SH = _by_expert(experts.down_proj, experts._apply_gate(gate_up), counts)
    unsorted_SH = torch.empty_like(out_SH).index_copy_(0, order_S, out_SH)
    out_TKH = unsorted_SH.view(*index_TK.shape, -1)
    return (out_TKH * weights_TK[..., None]).sum(dim=1).to(hidden_TH.dtype)


def _applies(experts: Any, hidden_TH: Tensor, index_TK: Tensor) -> bool:
    """Whether weights times tokens is faster for these experts and tokens."""
    plain = experts.has_gate and not (
        experts.has_bias or experts.is_transposed or experts.has_post_expert_norm
    )
    few = index_TK.numel() <= MAX_TOKENS_PER_EXPERT * experts.num_experts
    float32_on_cpu = hidden_TH.device.type == "cpu" and hidden_TH.dtype == torch.float32
    return plain and few and float32_on_cpu and not torch.is_grad_enabled()


def _by_expert(weights: Tensor, rows_SH: Tensor, counts: list[int]) -> Tensor:
    """Rows sorted by expert, `counts` of each, times their expert's weights [E, out, H]: [S,
    out]."""
    parts = zip(weights.unbind(0), rows_SH.split(counts), counts, strict=True)
    return torch.cat([_product(weight, part, count) for weight, part, count in parts if count])


def _product(weight: Tensor, rows: Tensor, count: int) -> Tensor:
    """`rows @ weight.T` for `count` rows, in the fastest order of the factors."""
    if count > MOST_WEIGHTS_FIRST:
        return torch.mm(rows, weight.t())
    if count in ONE_MORE_IS_FASTER:
        return torch.mm(weight, torch.cat([rows, rows[:1]]).t()).t()[:count]
    return torch.mm(weight, rows.t()).t()


GROUPED = ("grouped_mm", NAME)
"""Implementations that need a multiple of ALIGNMENT bytes in each row that experts read."""
ALIGNMENT = 16


def avoid_grouped_products(model: Any, given: str | None = None) -> None:
    """Compute experts one after the other ("eager") where grouped products refuse their widths.

    Args:
        given: `model.experts_implementation` of the command.

    Raises ConfigError if `given` is one that refuses them.
    """
    if experts_of(model.config.get_text_config()) not in GROUPED:
        return
    width = _refused_width(model)
    if width is None:
        return
    if given in GROUPED:
        raise ConfigError(
            f"model.experts_implementation={given} needs rows of a multiple of {ALIGNMENT} bytes, "
            f"and the experts have rows of {width} numbers in "
            f"{str(model.dtype).removeprefix('torch.')}. Leave it out."
        )
    model.set_experts_implementation(experts_option(model.config, "eager"))


def _refused_width(model: Any) -> int | None:
    """The length of a row that grouped products of experts refuse; None without one."""
    for module in model.modules():
        if not hasattr(type(module), "_apply_gate"):
            continue
        # of experts alone: convolutions have weights of three dimensions, too
        for weights in module.parameters(recurse=False):
            if weights.dim() != 3:
                continue
            width = weights.shape[1] if module.is_transposed else weights.shape[2]
            if width * weights.element_size() % ALIGNMENT:
                return int(width)
    return None


ALL_EXPERTS_FUNCTIONS.register(NAME, weights_first_experts_forward)
