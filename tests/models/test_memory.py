"""Breaks if free memory ignores the container, a peak is an earlier one, or a model leaves reference cycles in memory."""

import weakref
from types import SimpleNamespace

import psutil
import pytest
import torch

from moe_lab.models.memory import (
    ModelPool,
    free_host_memory,
    peak_memory_bytes,
    reset_peak_memory,
    weight_bytes,
)


@pytest.mark.parametrize(("limit", "free"), [("max", 7000), ("5000", 3000), ("90000", 7000), ("1000", 0)])
def test_a_container_may_have_less_memory_than_the_machine(tmp_path, monkeypatch, limit, free):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=7000))
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert free_host_memory(tmp_path) == free


def test_peak_memory_is_this_processs_and_starts_anew():
    block = bytearray(200 * 2**20)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    with_block = peak_memory_bytes(None)
    assert with_block > 200 * 2**20
    del block
    reset_peak_memory(None)
    assert peak_memory_bytes(None) < with_block - 100 * 2**20


def test_weights_are_counted_with_their_size():
    model = torch.nn.Linear(10, 6)
    model.register_buffer("steps", torch.zeros(3, dtype=torch.float64))
    assert weight_bytes(model) == (60 + 6) * 4 + 3 * 8


class Node:
    """Refers to itself, as a Trainer does by its callbacks."""

    def __init__(self) -> None:
        self.own = self


def test_free_removes_reference_cycles_also_before_a_model_was_loaded():
    node = Node()
    seen = weakref.ref(node)
    del node
    ModelPool().free()
    assert seen() is None
