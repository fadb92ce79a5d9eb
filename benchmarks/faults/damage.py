"""Stored files are damaged; the same command must return the same results, or stop with a message
that names the file."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from benchmarks.faults.kinds import Kind, clear, results_in, scratch

WHOLE = (".lock", ".png", ".svg", ".pdf", ".log")
"""Suffixes of files that no command reads."""
TENSORS = (".safetensors", ".pt")
MARKERS = ("results.json", "study.json", "training.json", "references.json", "best.yaml")
"""Files that say that something is finished: without them, what is next to them is read."""


def _empty(content: bytes, random: Random) -> bytes:
    return b""


def _cut(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))] if content else b""


def _flip(content: bytes, random: Random) -> bytes:
    """The highest bit of one byte, which no UTF-8 text survives."""
    if not content:
        return b"\x80"
    place = random.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :]


def _another(text: str) -> Callable[[bytes, Random], bytes]:
    return lambda content, random: text.encode()


DAMAGES: dict[str, Callable[[bytes, Random], bytes]] = {
    "emptied": _empty,
    "cut": _cut,
    "one bit flipped": _flip,
    "a list": _another("[]"),
    "null": _another("null"),
    "a text": _another('"text"'),
    "another mapping": _another('{"text": 1}'),
    "nested deeply": _another("[" * 100_000),
}
FOLDER = "a folder in its place"


class Damage:
    """Attempt n damages one file of a finished run, sometimes with markers of the end removed."""

    name = "damaged"

    def __init__(self, kinds: Sequence[Kind], work: Path, seed: int, count: int):
        self.kinds = kinds
        self.work = work
        self.seed = seed
        self.attempts = count
        self.endings: Counter[str] = Counter()

    def attempt(self, number: int) -> list[str]:
        """What is wrong after the damage of attempt `number`."""
        random = Random(f"{self.seed} damaged {number}")
        kind = self.kinds[number % len(self.kinds)]
        output = scratch(self.work)
        shutil.copytree(kind.finished, output, copy_function=_link_or_copy)
        _move_paths(output, kind.finished)
        files = sorted(
            path for path in output.rglob("*") if path.is_file() and path.suffix not in WHOLE
        )
        for marker in MARKERS:
            if random.random() < 0.3:
                _remove(marker, files)
        path = random.choice(
            [path for path in files if path.exists() and not path.name.startswith(".")]
        )
        how = random.choice([name for name in (*DAMAGES, FOLDER) if _possible(name, path)])
        _damage(path, how, random)
        ended = kind.run(output)
        place = f"{kind.name}, {path.relative_to(output)}, {how}"
        named = path.name in ended.output or path.parent.name in ended.output
        problems = []
        if ended.traceback or ended.code not in (0, 1, 2):
            problems.append(f"{place}: ended with {ended.code}: {ended.last_line}")
        elif ended.code == 0:
            problems += [f"{place}: {problem}" for problem in kind.problems(ended, output)]
        elif not named:
            problems.append(
                f"{place}: ended with {ended.code} without naming it: {ended.last_line}"
            )
        ending = "made again or not needed" if ended.code == 0 else "refused by name"
        self.endings[ending] += 1
        clear(output)
        return problems

    def told(self) -> str:
        return (
            f"{self.attempts} damaged files "
            f"({', '.join(f'{n} {what}' for what, n in self.endings.items())})"
        )


def _possible(how: str, path: Path) -> bool:
    """A flipped bit among the numbers of a tensor or a database is no damage that a reader could
    see."""
    return not (how == "one bit flipped" and path.suffix in (*TENSORS, ".db"))


def _remove(marker: str, files: Sequence[Path]) -> None:
    for path in files:
        if path.name == marker:
            path.unlink()


def _damage(path: Path, how: str, random: Random) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == FOLDER:
        path.mkdir()
    else:
        path.write_bytes(DAMAGES[how](content, random))


def _link_or_copy(source: str, target: str) -> None:
    """Tensors are linked, as nothing writes into them; all else is copied."""
    (os.link if source.endswith(TENSORS) else shutil.copy2)(source, target)


def _move_paths(output: Path, old: Path) -> None:
    """Let stored results name their new folder."""
    for path in output.glob("runs/*/*.json"):
        path.write_text(path.read_text().replace(str(old), str(output)))
    assert results_in(output)
