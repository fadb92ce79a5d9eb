"""Counting floating-point operations: products of matrices and attention, forward and backward, as torch runs them.

`torch.utils.flop_counter` does the counting; the products of experts and a CPU's attention, which it does not know, are
added here.

T = rows, D = columns of a row, E = experts, O = columns of the output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def _grouped_mm_flops(a_shape: Any, b_shape: Any, *args: Any, **kwargs: Any) -> int:
    """[T, D] x [E, D, O], rows sorted by expert; or [D, T] x [T, O], a product for each of some parts of T."""
    return 2 * a_shape[0] * a_shape[1] * b_shape[-1]


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward_flops(
    gradient: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


def _formulas() -> dict[Any, Any]:
    aten = torch.ops.aten
    return {
        aten._grouped_mm: _grouped_mm_flops,
        aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    }


class FlopCount(FlopCounterMode):
    """Counts what is computed inside the context.

    >>> with FlopCount() as flops:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> flops.total
    48
    """

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=_formulas())

    @property
    def total(self) -> int:
        """A product of [a, b] and [b, c] is 2 a b c."""
        return self.get_total_flops()
