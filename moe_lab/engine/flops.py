"""Counting of floating-point operations: matrix products and attention, forward and backward.

`torch.utils.flop_counter` counts them. Its missing formulas are added here: grouped products of
experts, and attention on a CPU.

T = tokens, D = input size, E = experts, O = output size.
"""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

_aten = torch.ops.aten
_FORMULAS: dict[Any, Any] = {
    # [T, D] x [E, D, O], tokens sorted by expert; or [D, T] x [T, O], one product for each part of
    # T
    _aten._grouped_mm: lambda one, other, *args, **kwargs: 2 * one[0] * one[1] * other[-1],
    _aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda query, key, value, *args, **kwargs: sdpa_flop_count(query, key, value)
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda gradient, query, key, value, *args, **kwargs: sdpa_backward_flop_count(
            gradient, query, key, value
        )
    ),
}


class FlopCount(FlopCounterMode):
    """Counts the operations inside the context.

    >>> with FlopCount() as flops:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> flops.total
    48
    """

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=_FORMULAS)

    @property
    def total(self) -> int:
        """Operations so far. A product of [a, b] and [b, c] has 2 a b c."""
        return self.get_total_flops()
