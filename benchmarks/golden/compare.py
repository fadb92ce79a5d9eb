"""Say what differs between two recordings, by command."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from benchmarks.golden.files import Recording, differing_values, is_text

KINDS = ("command", "exit code", "ids", "files", "numbers", "texts")
"""What is compared of a command: its line, its exit code, the names with an id, the other names,
the content of data files, and of texts."""
SHOWN = 40
"""Lines that are printed of one kind of one command."""
SHOWN_OF_FILE = 8
"""Lines of these that are of one file."""
WIDTH = 400
"""Characters that are printed of one line."""


@dataclass(frozen=True)
class Difference:
    kind: str
    lines: list[str]


def compare(before: Path, after: Path, pattern: str = "*", rtol: float = 0.0) -> int:
    """Print what differs in the commands whose names match, and a table.

    Returns the exit code: 0 where nothing differs.
    """
    names = fnmatch.filter(commands_in(before) | commands_in(after), pattern)
    if not names:
        raise SystemExit(
            f"{before} and {after} hold no recording of {pattern}."
            " Make one: python -m benchmarks.golden record FOLDER"
        )
    rows = []
    for name in sorted(names):
        differences = compare_command(before / name, after / name, rtol)
        if differences:
            print(f"== {name}")
        for difference in differences:
            print(f"-- {difference.kind}")
            for line in cut(difference.lines, SHOWN):
                print(shortened(line))
        rows.append((name, {difference.kind for difference in differences}))

    print_table(rows)
    different = sum(bool(kinds) for _, kinds in rows)
    if different:
        print(f"\n{different} of {len(rows)} commands differ.")
        return 1
    print(f"\nNothing differs in {len(rows)} commands.")
    return 0


def commands_in(folder: Path) -> set[str]:
    return {file.parent.name for file in folder.glob("*/command.json")}


def print_table(rows: list[tuple[str, set[str]]]) -> None:
    width = max(len(name) for name, _ in rows)
    print(f"\n{'':{width}}  " + "  ".join(f"{kind:9}" for kind in KINDS))
    for name, different in rows:
        words = ["differ" if kind in different else "equal" for kind in KINDS]
        print((f"{name:{width}}  " + "  ".join(f"{word:9}" for word in words)).rstrip())


def shortened(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    return line[:WIDTH] + " …"


def compare_command(before: Path, after: Path, rtol: float) -> list[Difference]:
    """The differences of one command, in the order of KINDS."""
    for folder in (before, after):
        if not (folder / "command.json").is_file():
            return [Difference("command", [f"{folder.parent} has no such command."])]
    old = Recording(before)
    new = Recording(after)

    differences = []
    if old.line != new.line:
        differences.append(Difference("command", [f"- {old.line}", f"+ {new.line}"]))
    if old.exit_code != new.exit_code:
        differences.append(
            Difference("exit code", [f"{old.exit_code} before, {new.exit_code} after"])
        )

    changed_ids = old.ids ^ new.ids
    if changed_ids:
        differences.append(Difference("ids", one_sided(old.ids, new.ids)))
    old_paths = old.paths_without(changed_ids)
    new_paths = new.paths_without(changed_ids)
    if old_paths != new_paths:
        differences.append(Difference("files", one_sided(old_paths, new_paths)))

    numbers: list[str] = []
    texts: list[str] = []
    for path in sorted(old_paths & new_paths):
        if is_text(path):
            texts.extend(text_difference(path, old.text(path), new.text(path)))
        else:
            numbers.extend(value_difference(path, old, new, rtol))
    if numbers:
        differences.append(Difference("numbers", numbers))
    if texts:
        differences.append(Difference("texts", texts))
    return differences


def one_sided(before: set[str], after: set[str]) -> list[str]:
    """Names that only one recording has."""
    lines = [f"- {name}" for name in sorted(before - after)]
    lines += [f"+ {name}" for name in sorted(after - before)]
    return lines


def text_difference(path: str, before: str, after: str) -> list[str]:
    """A unified diff."""
    if before == after:
        return []
    lines = list(
        unified_diff(
            before.splitlines(),
            after.splitlines(),
            f"before/{path}",
            f"after/{path}",
            lineterm="",
            n=1,
        )
    )
    return cut(lines, SHOWN_OF_FILE)


def value_difference(path: str, old: Recording, new: Recording, rtol: float) -> list[str]:
    """A line for each value that differs."""
    lines = [
        f"{path}: {line}" for line in differing_values(old.values(path), new.values(path), rtol)
    ]
    return cut(lines, SHOWN_OF_FILE)


def cut(lines: list[str], line_count: int) -> list[str]:
    if len(lines) <= line_count:
        return lines
    return [*lines[:line_count], f"… and {len(lines) - line_count} lines more"]
