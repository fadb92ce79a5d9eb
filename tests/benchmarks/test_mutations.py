"""Breaks if a mutation is of a message or a type, cannot be switched on alone, or is another one for the same seed."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import mutations

CODE = '''
from __future__ import annotations
"""A docstring of 1 line."""
SIZE: tuple[int, 3] = (4,)

def clipped(x: int = 5, *, low: int = 0) -> "1 < 2":
    if not x > low:
        raise ValueError(f"{x + 1} is at most {low + 1}")
    print(x + 2)
    return min(x, 7) + pow(low, 2)
'''


def drawn(folder: Path, seed: str, count: int = 12) -> list[mutations.Mutation]:
    for name in mutations.PACKAGES:
        (folder / "moe_lab" / name).mkdir(parents=True, exist_ok=True)
    (folder / "moe_lab" / "routing" / "code.py").write_text(CODE)
    return mutations.draw(folder, count, seed)


def test_a_seed_draws_the_same_mutations_and_none_of_texts_and_types(tmp_path):
    found = drawn(tmp_path, "a")
    assert found == drawn(tmp_path, "a") != drawn(tmp_path, "b")
    assert {(one.line, one.kind, one.before) for one in found} == {
        (4, "constant", "4"), (6, "constant", "5"), (6, "constant", "0"), (7, "comparison", "x > low"),
        (7, "not", "not x > low"), (7, "condition", "not x > low"), (10, "arithmetic", "min(x, 7) + pow(low, 2)"),
        (10, "min/max", "min(x, 7)"), (10, "arguments", "pow(low, 2)"), (10, "constant", "7"), (10, "constant", "2"),
    } | {(8, "deletion", one.before) for one in found if one.kind == "deletion"}  # fmt: skip


def test_each_is_switched_on_alone(tmp_path, monkeypatch):
    found = drawn(tmp_path, "a")
    code = compile((tmp_path / "moe_lab" / "routing" / "code.py").read_text(), "code.py", "exec")
    probe = ModuleType("mutation_probe")
    monkeypatch.setitem(sys.modules, "mutation_probe", probe)

    def results(active: int | None) -> list[object]:
        monkeypatch.setattr(probe, "on", lambda number: number == active, raising=False)
        own: dict[str, Any] = {}
        exec(code, own)
        return [own["SIZE"], answer(own["clipped"]), *(answer(own["clipped"], x, low=3) for x in (9, 4, 3))]

    plain = results(None)
    assert plain == [(4,), 5, 16, 13, "refused"]
    assert all(results(number) != plain for number in range(len(found)))


def answer(clipped: Any, *given: int, **named: int) -> object:
    try:
        return clipped(*given, **named)
    except ValueError:
        return "refused"
