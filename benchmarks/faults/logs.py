"""Forged results and sample logs; `mode=report` and `mode=compare` must show the others, or name the file in a message."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.faults.child import Ended, run
from benchmarks.faults.kinds import Kind, clear, scratch

DATE = "2026-01-02T03-04-05.678901"
"""Of the files that stand for those of lm-eval."""
PATIENCE = 60.0
"""Seconds after which a command hangs."""
KILLED = 137
STORED = ("results.json", "samples_*.jsonl", "config.yaml", "overrides.yaml", "status.json")
STUDY = ("study.json", "best.yaml", "trials.csv", "status.json")
TRAINING = ("training.json", "identity.json", "status.json")
OTHER = re.compile(r'<tr data-row [^>]*data-method="base".*?</tr>', re.DOTALL)
"""The rows of untouched models in the list, which no forged log may change."""
OTHER_INPUT = re.compile(
    r"^(Error: )?Other (documents|prompts|right answers) of .*\bin [ab]\b", re.MULTILINE | re.DOTALL
)
"""Two evaluations of other questions, which are refused by the names that the command line gives them."""
ESCAPES = "\x1b[2J\x1b]0;forged\x07\u202e"
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**70, 10**400, 1e999, float("nan"), -0.5, "", "text", "0.5", "\ud800"),
    *(
        ESCAPES,
        "a\nError: forged",
        "=cmd()",
        "x" * 100_000,
        "../../..",
        [],
        {},
        [[]],
        [None],
        {"a": {"b": []}},
    ),
)
"""What takes the place of a value."""


def _nested(content: bytes, random: Random) -> bytes:
    return b'{"results": ' + b"[" * 100_000


def _long_line(content: bytes, random: Random) -> bytes:
    return b'{"doc_id": 0, "doc": "' + b"x" * 20_000_000 + b'"}\n' + content


def _digits(content: bytes, random: Random) -> bytes:
    return content.replace(b"1", b"1" * 1_000_000, 1)


def _twice(content: bytes, random: Random) -> bytes:
    lines = content.splitlines(keepends=True)
    return content + (random.choice(lines) if lines else b"")


def _invalid(content: bytes, random: Random) -> bytes:
    place = random.randrange(max(1, len(content)))
    return content[:place] + b"\xff\xc3" + content[place:]


OF_BYTES: dict[str, Callable[[bytes, Random], bytes]] = {
    "nested deeply": _nested,
    "a line of 20 MB": _long_line,
    "a million digits": _digits,
    "a line twice": _twice,
    "invalid UTF-8": _invalid,
    "a byte order mark": lambda content, random: b"\xef\xbb\xbf" + content,
    "UTF-16": lambda content, random: content.decode("utf-8", "replace").encode("utf-16"),
    "empty": lambda content, random: b"",
    "cut": lambda content, random: content[: len(content) // 2],
    "a list": lambda content, random: b"[1, 2]",
    "null": lambda content, random: b"null",
    "aliases": lambda content, random: (
        b"a: &a [x, x]\n" + b"b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n" * 9
    ),
}


def _fifo(path: Path) -> None:
    os.mkfifo(path)


OF_FILES: dict[str, Callable[[Path], object]] = {
    "a FIFO": _fifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a folder": Path.mkdir,
}
VALUE = "an odd value"
FORGERIES = (*OF_BYTES, *OF_FILES, *(VALUE,) * 2 * len(OF_BYTES))


READ = ("moe_lab", "results")
"""Keys of a results.json below which readers look."""


class Logs:
    """Attempt n forges one file of a finished run, or of a folder as lm-eval writes it."""

    name = "logs"

    def __init__(self, kinds: Sequence[Kind], work: Path, seed: int, count: int):
        import moe_lab.reports.pages.comparison_page
        import moe_lab.reports.pages.listing_page
        import moe_lab.reports.terminal.comparison  # noqa: F401  children find them imported

        self.kinds, self.work, self.seed, self.attempts = kinds, work, seed, count
        self.endings: Counter[str] = Counter()

    def attempt(self, number: int) -> list[str]:
        """What is wrong after the forgery of attempt `number`."""
        random = Random(f"{self.seed} logs {number}")
        kind = self.kinds[number % len(self.kinds)]
        output = scratch(self.work)
        shutil.copytree(kind.finished, output)
        forge = self._foreign if number % 3 == 0 else self._stored
        problems = list(forge(kind, output, random))
        clear(output)
        return problems

    def _stored(self, kind: Kind, output: Path, random: Random) -> Iterator[str]:
        """Forge a file of this package's own; list everything, and make the run's page again."""
        report = ["mode=report", f"output_dir={output}"]
        before = _page(output, self._run(report, output))
        for page in output.glob("*/*/report.html"):
            page.unlink()
        own = [
            path
            for part in ("runs", "studies", "models")
            for path in output.glob(f"{part}/*")
            if "-base-" not in path.name
        ]
        folder = random.choice(own)
        names = {"runs": STORED, "studies": STUDY, "models": TRAINING}[folder.parent.name]
        path = random.choice(sorted(path for name in names for path in folder.glob(name)))
        how = _forge(path, random)
        where = f"{kind.name}, {path.relative_to(output)}, {how}"
        ended = self._run(report, output)
        yield from self._problems(ended, path, f"{where}, listed")
        if ended.code == 0 and OTHER.findall(_page(output, ended)) != OTHER.findall(before):
            yield f"{where}: the row of another run is another one"
        yield from self._problems(
            self._run([*kind.argv(output), "mode=report"], output), path, f"{where}, reported"
        )

    def _foreign(self, kind: Kind, output: Path, random: Random) -> Iterator[str]:
        """Forge a file as lm-eval writes it; compare it with the run that it was."""
        own = next(path for path in sorted(output.glob("runs/*")) if "-base-" not in path.name)
        folder = output / "lm_eval"
        folder.mkdir()
        results = json.loads((own / "results.json").read_text())
        del results["moe_lab"]
        (folder / f"results_{DATE}.json").write_text(json.dumps(results))
        for samples in own.glob("samples_*.jsonl"):
            shutil.copy(samples, folder / f"{samples.stem}_{DATE}.jsonl")
        path = random.choice(sorted(folder.iterdir()))
        how = _forge(path, random)
        pair = [f"a={own}", f"b={folder}"]
        for a, b in (pair, [pair[1].replace("b=", "a="), pair[0].replace("a=", "b=")]):
            ended = self._run(["mode=compare", a, b, f"output_dir={output}"], output)
            yield from self._problems(ended, path, f"{kind.name}, {path.name}, {how}, compared")

    def _run(self, argv: list[str], output: Path) -> Ended:
        return run(argv, output.with_suffix(".log"), kill_after=PATIENCE)

    def _problems(self, ended: Ended, path: Path, where: str) -> Iterator[str]:
        named = any(part in ended.output for part in (path.name, path.parent.name)) or OTHER_INPUT.search(
            ended.output
        )
        self.endings["shown" if ended.code == 0 else "refused by name"] += 1
        if ended.code == KILLED:
            yield f"{where}: it hangs"
        elif ended.traceback or ended.code not in (0, 1, 2):
            yield f"{where}: ended with {ended.code}: {ended.last_line}"
        elif ended.code != 0 and not named:
            yield f"{where}: ended with {ended.code} without naming it: {ended.last_line}"
        if "\x1b" in ended.output or "\nError: forged" in ended.output:
            yield f"{where}: its text steers the terminal"

    def told(self) -> str:
        return f"{self.attempts} forged logs ({', '.join(f'{n} {what}' for what, n in self.endings.items())})"


def _page(output: Path, ended: Ended) -> str:
    page = output / "index.html"
    return page.read_text() if ended.code == 0 and page.is_file() else ""


def _forge(path: Path, random: Random) -> str:
    """Forge a file and say how."""
    how = random.choice(FORGERIES)
    content = path.read_bytes()
    if how == VALUE:
        forged = _odd_value(content, path.suffix, random)
        if forged is not None:
            path.write_bytes(forged[0])
            return forged[1]
        how = "a list"
    path.unlink()
    if how in OF_FILES:
        OF_FILES[how](path)
    else:
        path.write_bytes(OF_BYTES[how](content, random))
    return how


def _odd_value(content: bytes, suffix: str, random: Random) -> tuple[bytes, str] | None:
    """The content with another value, or none, at a random place; None of a file that is not JSON."""
    if suffix not in (".json", ".jsonl"):
        return None
    lines = content.splitlines(keepends=True) if suffix == ".jsonl" else [content]
    if not lines:
        return None
    number = random.randrange(len(lines))
    value = json.loads(lines[number])
    places = list(_places(value))
    read = [place for place in places if place[0] in READ]
    place = random.choice(read if read and random.random() < 0.8 else places)
    odd = copy.deepcopy(random.choice(ODD))
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    if random.random() < 0.2:
        del inner[place[-1]]
        how = f"{'.'.join(map(str, place))} is gone"
    else:
        inner[place[-1]] = odd
        how = f"{'.'.join(map(str, place))} is {str(odd)[:30]!r}"
    lines[number] = json.dumps(value).encode() + b"\n"
    return b"".join(lines), how


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values within a value, the shallow ones more often: more is read there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from [(*place, key)] * max(1, 5 - len(place))
        yield from _places(inner, (*place, key))
