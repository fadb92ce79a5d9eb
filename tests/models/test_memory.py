"""Free memory of the host is that of its container."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from moe_lab.models.memory import free_host_memory


@pytest.mark.parametrize(("limit", "free"), [("max", 7000), ("5000", 3000), ("90000", 7000), ("1000", 0)])
def test_a_container_may_have_less_memory_than_the_machine(tmp_path, monkeypatch, limit, free):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=7000))
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert free_host_memory(tmp_path) == free
