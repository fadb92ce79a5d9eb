"""Counting of floating-point operations: matrix products and attention, forward and backward.

`torch.utils.flop_counter` counts them. Its missing formulas are added here: grouped products of
experts, and attention on a CPU.

T = tokens, D = input size, E = experts, O = output size.
"""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def _grouped_flops(left: torch.Size, right: torch.Size, *args: Any, **kwargs: Any) -> int:
    """Of a grouped product, from the shapes of its factors.

    These are [T, D] x [E, D, O], tokens sorted by expert; or [D, T] x [T, O], one product for each
    part of T.
    """
    return 2 * left[0] * left[1] * right[-1]


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward_flops(
    gradient: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


_aten = torch.ops.aten
_FORMULAS: dict[Any, Any] = {
    _aten._grouped_mm: _grouped_flops,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}
"""The missing formulas: shapes of an operation's arguments -> floating-point operations."""


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
