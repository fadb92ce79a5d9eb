"""A store keeps values within its bound."""

from __future__ import annotations

import torch

from moe_lab.engine.forward.memory_bound import Store


def test_the_store_stays_within_its_bound():
    store = Store(100)
    for key in range(4):
        store.add(key, torch.zeros(10))
    assert [key for key in range(4) if store.get(key) is not None] == [0, 1]
    assert store.nbytes == 80
