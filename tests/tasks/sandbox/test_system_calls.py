"""Breaks if the filter lets a refused call through, or takes another with it."""

from __future__ import annotations

import struct

import pytest

from moe_lab.tasks.sandbox import system_calls
from moe_lab.tasks.sandbox.system_calls import ALLOW, NUMBERS, REFUSE, filter_program


def judged(code: bytes, architecture: int, number: int) -> int:
    """What the kernel's machine returns for a call: an interpreter of the four instructions that are used."""
    instructions = list(struct.iter_unpack("HBBI", code))
    data = {0: number, 4: architecture}
    position, value = 0, 0
    while True:
        operation, if_true, if_false, operand = instructions[position]
        position += 1
        if operation == system_calls.LOAD:
            value = data[operand]
        elif operation == system_calls.RETURN:
            return operand
        else:
            holds = value == operand if operation == system_calls.EQUAL else value >= operand
            position += if_true if holds else if_false


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_refused_calls_and_no_others(machine: str) -> None:
    architecture, refused = NUMBERS[machine]
    code = filter_program(architecture, refused)
    for number in range(600):
        expected = REFUSE if number in refused else ALLOW
        assert judged(code, architecture, number) == expected, number


def test_other_architectures_and_calling_conventions_are_refused() -> None:
    architecture, refused = NUMBERS["x86_64"]
    code = filter_program(architecture, refused)
    assert judged(code, 0x40000003, 1) == REFUSE, "the 32 bit calls of an x86"
    assert judged(code, architecture, 0x40000000 | 1) == REFUSE, "x32"


def test_an_unknown_architecture_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls.platform, "machine", lambda: "vax")
    with pytest.raises(OSError, match="vax"):
        system_calls.refuse_system_calls()
