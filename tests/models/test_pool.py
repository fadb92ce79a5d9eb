"""Breaks if a model leaves memory while what refers to it in a circle stays."""

from __future__ import annotations

import weakref

from moe_lab.models.pool import ModelPool


class Node:
    """Refers to itself, as a Trainer does by its callbacks."""

    def __init__(self) -> None:
        self.own = self


def test_free_removes_reference_cycles_also_before_a_model_was_loaded() -> None:
    node = Node()
    seen = weakref.ref(node)
    del node
    ModelPool().free()
    assert seen() is None
