"""Breaks if a weaker cage is used, a broken limit is not noticed, outcomes are mixed up, or a refused call gets through."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from moe_lab.errors import ResultsError, TaskError
from moe_lab.tasks.sandbox import cage, programs
from moe_lab.tasks.sandbox.cage import Cage, Limits, candidates
from moe_lab.tasks.sandbox.inside import (
    ALLOW,
    EQUAL,
    LOAD,
    NUMBERS,
    REFUSE,
    RETURN,
    filter_program,
    platform,
    refuse_system_calls,
)
from moe_lab.tasks.sandbox.programs import broken_promises
from tests.support.attack import skip_where_impossible

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    programs.require_cage.cache_clear()
    yield
    programs.require_cage.cache_clear()


def usable() -> Cage:
    """This machine's cage; skips the test where there is none, and says why."""
    try:
        return programs.require_cage()
    except TaskError as error:
        assert all(one.name in str(error) for one in candidates())
        skip_where_impossible(str(error))


@pytest.mark.parametrize(
    ("weaker", "noticed"),
    [
        ({"memory": 64 * 2**30}, "memory is not limited"),
        ({"processes": 100}, "the number of processes is not limited"),
        ({"cpu_seconds": 100, "wall_seconds": 3}, "processor time is not limited"),
        ({"file_size": 2**30, "folder_size": 2**30}, "the size of files is not limited"),
    ],
)
def test_every_weaker_limit_is_noticed(weaker: dict[str, Any], noticed: str) -> None:
    class Weaker(Cage):
        def run(self, program: str, limits: Limits) -> str:
            return super().run(program, replace(limits, **weaker))

    assert noticed in " ".join(broken_promises(Weaker(usable().bubblewrap)))


def test_a_python_in_the_home_folder_shows_nothing_else_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home folder is the one that Python is installed in, as after `./configure --prefix=$HOME`."""
    monkeypatch.setenv("HOME", sys.base_prefix)
    assert broken_promises(usable()) == []


def test_a_home_folder_that_is_shown_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = usable()
    monkeypatch.setenv("HOME", cage.IMPORT_PATHS[0])
    assert "files of the home folder can be seen" in " ".join(broken_promises(one))


def test_a_cage_that_cannot_be_built_executes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is told, with the reason of every cage."""
    monkeypatch.setattr(programs, "candidates", lambda: [Cage("/bin/false"), Cage("/nowhere/bwrap")])
    with pytest.raises(TaskError) as refused:
        programs.run_programs(["x = 1"])
    message = str(refused.value)
    assert "cannot be confined on this machine, so none is executed" in message
    assert "bubblewrap: an ordinary program does not run" in message and "/nowhere/bwrap" in message


def test_one_broken_promise_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "broken_promises", lambda one: ["the network is not cut off (passed)"])
    with pytest.raises(TaskError, match="the network is not cut off"):
        programs.require_cage()


def test_the_next_cage_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(one: Cage) -> list[str]:
        if one.bubblewrap:
            raise ResultsError("no user namespaces")
        return []

    monkeypatch.setattr(programs, "candidates", lambda: [Cage("/usr/bin/bwrap"), Cage(None)])
    monkeypatch.setattr(programs, "broken_promises", broken)
    assert programs.require_cage() == Cage(None)


def test_outcomes_stand_in_the_order_of_their_programs() -> None:
    usable()
    sources = ["import time\ntime.sleep(0.5)", "1 / 0", "x = 1", "syntax error", "assert False"]
    assert programs.run_programs(sources) == [
        "passed",
        "failed: ZeroDivisionError",
        "passed",
        "failed: SyntaxError",
        "failed: AssertionError",
    ]


# The filter of system calls


def judged(code: bytes, architecture: int, number: int) -> int:
    """What the kernel's machine returns for a call: an interpreter of the four instructions that are used."""
    instructions = list(struct.iter_unpack("HBBI", code))
    data = {0: number, 4: architecture}
    position, value = 0, 0
    while True:
        operation, if_true, if_false, operand = instructions[position]
        position += 1
        if operation == LOAD:
            value = data[operand]
        elif operation == RETURN:
            return operand
        else:
            holds = value == operand if operation == EQUAL else value >= operand
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
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    with pytest.raises(OSError, match="vax"):
        refuse_system_calls()
