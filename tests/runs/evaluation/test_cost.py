"""Breaks if a cost is counted from the wrong moment, or if energy is invented where none can be read."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.models.memory import reset_peak_memory
from moe_lab.runs.evaluation import result_block as cost


def test_working_memory_is_what_answering_added() -> None:
    """Broken by memory that an earlier run freed and the process still holds, and by counting the model."""
    held = [bytearray(b"x" * 2**20) for _ in range(64)]
    model: Any = SimpleNamespace(cost={}, device=SimpleNamespace(type="cpu"))
    freed = [bytes(60_000) + bytes([index % 256]) for index in range(3000)]
    del freed
    reset_peak_memory(None)
    meter = cost.Meter(model)
    block = b"x" * (100 * 2**20)
    del block
    spent = meter.spent()
    assert 90 * 2**20 < spent["peak_working_bytes"] < 150 * 2**20
    assert spent["peak_memory_bytes"] > spent["peak_working_bytes"] + len(held) * 2**20


def test_a_cpu_tells_no_energy() -> None:
    assert cost.energy_joules(SimpleNamespace(type="cpu")) is None
    model: Any = SimpleNamespace(cost={"tokens_in": 0}, device=SimpleNamespace(type="cpu"))
    assert "energy_joules" not in cost.Meter(model).spent()


def test_energy_is_the_difference_of_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1000, 5000, 9500])
    nvml = SimpleNamespace(nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(readings))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(cost, "_nvml_handle", lambda device: "handle")
    monkeypatch.setattr(cost, "peak_memory_bytes", lambda device: 1)
    monkeypatch.setattr(cost, "memory_bytes", lambda device: 1)
    model: Any = SimpleNamespace(cost={}, device=SimpleNamespace(type="cuda"))
    meter = cost.Meter(model)
    assert meter.spent()["energy_joules"] == 4.0
    assert meter.spent()["energy_joules"] == 4.5


def test_what_an_engine_counts_is_stored() -> None:
    counts = {"tokens_in": 40.0, "tokens_out": 7.0, "near_ties": 3.0, "cut_prompts": 2.0, "wall_seconds": 4.0}
    log: Any = SimpleNamespace(cost=counts, environment={})
    block = cost.cost_block(log)
    assert [block[key] for key in ("tokens_in", "tokens_out", "near_ties", "cut_prompts")] == [40, 7, 3, 2]
    assert block["tokens_per_second"] == 10.0
