"""Decoder layers that a pass leaves out, since it continues from their activations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from torch import nn

_left_out: WeakSet[nn.Module] = WeakSet()
"""The layers and all of their parts."""


@contextmanager
def leaving_out(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Inside the context these decoder layers do not run, and their routers are not missed."""
    modules = [module for layer in layers for module in layer.modules() if module not in _left_out]
    _left_out.update(modules)
    try:
        yield
    finally:
        _left_out.difference_update(modules)


def is_left_out(module: nn.Module) -> bool:
    """Whether a module belongs to a layer that does not run."""
    return module in _left_out
