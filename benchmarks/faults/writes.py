"""Every write, fsync and rename of a run fails once, with a full disk or a broken one; then the same command again."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.faults import interpose
from benchmarks.faults.kinds import Kind, clear, scratch

ERRORS = (errno.ENOSPC, errno.EIO)


class Writes:
    """Attempt n lets one call of one kind of run fail. `most` of each kind are chosen at random; None: all of them."""

    name = "writes"

    def __init__(self, kinds: Sequence[Kind], work: Path, seed: int, most: int | None):
        self.work = work
        random = Random(f"{seed} writes")
        self.faults: list[tuple[Kind, int]] = []
        self.calls: dict[str, int] = {}
        for kind in kinds if most != 0 else ():
            calls = self._count(kind)
            self.calls[kind.name] = calls
            numbers = range(1, calls + 1)
            chosen = numbers if most is None else sorted(random.sample(numbers, min(most, calls)))
            self.faults += [(kind, number) for number in chosen]
        self.attempts = len(self.faults)

    def attempt(self, number: int) -> list[str]:
        """What is wrong while call `number` of the list fails, and afterwards."""
        kind, call = self.faults[number]
        error = ERRORS[number % len(ERRORS)]
        output = scratch(self.work)
        ended = kind.run(output, before=partial(interpose.arm, output, call, error))
        where = f"{kind.name}, call {call} of {self.calls[kind.name]}, {errno.errorcode[error]}"
        problems = []
        if ended.traceback or ended.code not in (0, 1, 2):
            problems.append(f"{where}: ended with {ended.code}: {ended.last_line}")
        if ended.code == 0:
            problems += [f"{where}: ended with 0, {problem}" for problem in kind.problems(ended, output)]
        again = kind.run(output)
        problems += [f"{where}, then again: {problem}" for problem in kind.problems(again, output)]
        clear(output)
        return problems

    def _count(self, kind: Kind) -> int:
        output = scratch(self.work)
        kind.run(
            output,
            before=partial(interpose.arm, output, 0, 0),
            after=lambda: print(f"\ncalls {interpose.calls()}"),
        )
        log = output.with_suffix(".log").read_text()
        clear(output)
        return int(log.rpartition("calls ")[2])

    def told(self) -> str:
        each = ", ".join(f"{name} {calls}" for name, calls in self.calls.items())
        return f"{self.attempts} failing calls (a run makes: {each})"
