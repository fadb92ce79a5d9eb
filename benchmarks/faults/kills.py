"""Kills with -9 at random moments, several in a row; then the same command must end in the same
results."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from random import Random

from benchmarks.faults.kinds import Kind, clear, scratch

IN_A_ROW = 4
"""Kills of one run before it is let finish."""


class Kills:
    """Attempt n is one run that is killed IN_A_ROW times."""

    name = "kills"

    def __init__(self, kinds: Sequence[Kind], work: Path, seed: int, count: int):
        self.kinds = kinds
        self.work = work
        self.seed = seed
        self.attempts = -(-count // IN_A_ROW)

    def attempt(self, number: int) -> list[str]:
        """What is wrong after the kills of attempt `number`."""
        random = Random(f"{self.seed} kills {number}")
        kind = self.kinds[number % len(self.kinds)]
        output = scratch(self.work)
        killed = since = 0
        while killed < IN_A_ROW:
            ended = kind.run(output, kill_after=random.uniform(0.02, 0.9) * kind.seconds)
            if ended.code != 128 + signal.SIGKILL:  # it was faster: another one
                if since == 0:
                    kind.seconds = min(kind.seconds, ended.seconds)
                since = 0
                if problems := kind.problems(ended, output):
                    return [f"{kind.name}: {problem}" for problem in problems]
                clear(output)
                output = scratch(self.work)
                continue
            killed = killed + 1
            since = since + 1
            if ended.traceback:
                return [f"{kind.name}: a traceback before the kill: {ended.last_line}"]
        ended = kind.run(output)
        problems = [f"{kind.name}: {problem}" for problem in kind.problems(ended, output)]
        clear(output)
        return problems

    def told(self) -> str:
        return f"{self.attempts * IN_A_ROW} kills of {self.attempts} runs"
