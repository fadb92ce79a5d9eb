"""Names of the MoE layers that C3PO re-mixes, as in the paper's Table 8 (F, M and L: first, middle, last)."""

from __future__ import annotations

import re
from typing import Any

from moe_lab.errors import ConfigError

_PART = re.compile(r"(first|middle|last)(\d+)")


def named_layers(given: Any, count: int) -> list[int]:
    """MoE layer numbers in order of `last5`, `first2+last3`, `middle4`, `all`, or a list of numbers.

    >>> named_layers("first2+last3", 16)
    [0, 1, 13, 14, 15]

    Raises ConfigError for an unknown name and for more layers than `count`.
    """
    if isinstance(given, list):
        layers = given
    elif given == "all":
        layers = list(range(count))
    else:
        layers = [layer for part in str(given).split("+") for layer in _part(part, given, count)]
    wrong = [layer for layer in layers if not isinstance(layer, int) or not 0 <= layer < count]
    if wrong or not layers or len(set(layers)) < len(layers):
        raise ConfigError(
            f"method.layers={given}: the model has MoE layers 0 to {count - 1}, and each may be named once."
        )
    return sorted(layers)


def _part(part: str, given: Any, count: int) -> list[int]:
    match = _PART.fullmatch(part)
    if not match:
        raise ConfigError(
            f"method.layers={given}: {part} names no layers. Use e.g. last5, first2+last3, middle4, all or [11,12,13]."
        )
    where, size = match[1], int(match[2])
    if not 1 <= size <= count:
        raise ConfigError(
            f"method.layers={given}: the model has {count} MoE layers. Use at most {where}{count}, or all."
        )
    start = {"first": 0, "middle": (count - size) // 2, "last": count - size}[where]
    return list(range(start, start + size))
