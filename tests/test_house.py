"""Breaks if an import runs upward, if files or folders import each other in a circle, or if a module lies loose.

Every import counts: within functions and under `TYPE_CHECKING`, too.

Breaks if a package has no tests, a test file does not say what it tests, or test modules import each other.

The package `moe_lab/a/b/` is tested by the files of `tests/a/b/`, or by `tests/a/test_b*.py`.
"""

import ast
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path
from typing import NamedTuple

from tests.support.sources import PACKAGE, files_in, nodes_of, tree_of

FLOORS = (
    "errors",
    "config",
    "routing",
    "models",
    "results",
    "engine",
    "tasks",
    "metrics",
    "methods",
    "reports",
    "runs",
    "api",
    "cli",
    "__main__",
)
"""Entries of moe_lab/ from the ground up. Each one imports itself and those before it."""


class Import(NamedTuple):
    source: str
    """The importing module, `a.b` for moe_lab/a/b.py."""
    target: str
    place: str
    """File and line."""


def name_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {name_of(file): file for file in files_in(PACKAGE)}


@cache
def imports() -> list[Import]:
    return [found for name, file in modules().items() if name for found in imports_of(name, file)]


def imports_of(name: str, file: Path) -> Iterator[Import]:
    for node in nodes_of(file):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "moe_lab"
        ):
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names if alias.name.split(".")[0] == "moe_lab"]
        else:
            continue
        for target in targets:
            inner = target.removeprefix("moe_lab").removeprefix(".")
            known = inner if inner in modules() else inner.rpartition(".")[0]
            if known and known != name:
                yield Import(name, known, f"moe_lab/{file.relative_to(PACKAGE)}:{node.lineno}")


def circle(edges: dict[str, set[str]]) -> list[str] | None:
    """Names on a circle, the first one twice; None where there is none."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for other in sorted(edges.get(name, ())):
            if found := search(other, [*path, name]):
                return found
        done.add(name)
        return None

    return next((found for name in sorted(edges) if (found := search(name, []))), None)


def test_every_entry_has_a_floor():
    others = ("__pycache__", "__init__.py", "py.typed")
    entries = {path.stem for path in PACKAGE.iterdir() if path.name not in others}
    assert entries == set(FLOORS)
    assert len(FLOORS) + 1 <= 15


def test_no_import_runs_upward():
    upward = [
        f"{found.place} imports moe_lab.{found.target}"
        for found in imports()
        if FLOORS.index(found.source.split(".")[0]) < FLOORS.index(found.target.split(".")[0])
    ]
    assert not upward, "\n".join(upward)


def test_no_module_uses_the_python_interface():
    """`from moe_lab import RoE` is for others; within the package it would run upward, whatever it names."""
    names = {path.stem for path in PACKAGE.iterdir()}
    used = [
        f"{name} imports {alias.name}"
        for name, file in modules().items()
        for node in nodes_of(file)
        if isinstance(node, ast.ImportFrom) and node.module == "moe_lab"
        for alias in node.names
        if alias.name not in names
    ]
    assert not used, "\n".join(used)


def test_training_data_sets_have_names_of_their_own():
    """Two classes named PackedRows were once taken for each other: rows of a corpus, and rows of the toy corpus."""
    names = [
        node.name
        for file in modules().values()
        for node in nodes_of(file)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).startswith("Dataset") for base in node.bases)
    ]
    assert names and sorted(names) == sorted(set(names))


def test_no_files_import_each_other():
    edges: dict[str, set[str]] = {}
    for found in imports():
        edges.setdefault(found.source, set()).add(found.target)
    assert_no_circle(edges, {(found.source, found.target): found.place for found in imports()})


def test_no_folders_import_each_other():
    edges: dict[str, set[str]] = {}
    places: dict[tuple[str, str], str] = {}
    for found in imports():
        ends = folder_of(found.source), folder_of(found.target)
        # a folder holds its subfolders
        if not any(one.startswith(other) for one, other in permutations(ends)):
            edges.setdefault(ends[0], set()).add(ends[1])
            places[ends] = found.place
    assert_no_circle(edges, places)


def folder_of(name: str) -> str:
    """`a.b.` for a module in moe_lab/a/b/."""
    return "".join(f"{part}." for part in modules()[name].parent.relative_to(PACKAGE).parts)


def assert_no_circle(edges: dict[str, set[str]], places: dict[tuple[str, str], str]) -> None:
    found = circle(edges)
    steps = [f"{one} -> {other} ({places[one, other]})" for one, other in pairwise(found or [])]
    assert not found, "\n".join(steps)


def test_circles_are_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) is None


TESTS = Path(__file__).resolve().parent


def has_tests(package: Path) -> bool:
    """`package` is relative to moe_lab/."""
    mirrored = TESTS / package
    return any([*mirrored.rglob("test_*.py"), *mirrored.parent.glob(f"test_{package.name}*.py")])


def test_every_package_has_tests():
    packages = {file.parent.relative_to(PACKAGE) for file in files_in(PACKAGE)}
    missing = sorted(str(package) for package in packages if not has_tests(package))
    assert not missing, f"Packages of moe_lab without tests: {', '.join(missing)}"


def test_every_test_file_says_what_it_tests():
    files = [file for file in files_in(TESTS) if file.name.startswith("test_")]
    missing = [
        str(file.relative_to(TESTS)) for file in files if not ast.get_docstring(tree_of(file))
    ]
    assert not missing, f"Test files without a docstring: {', '.join(missing)}"


def test_tests_import_no_tests_but_support():
    wrong = []
    for file in files_in(TESTS):
        for node in nodes_of(file):
            for module in imported(node):
                package, *rest = module.split(".")
                if package == "tests" and rest[:1] != ["support"]:
                    place = f"{file.relative_to(TESTS.parent)}:{node.lineno}"
                    wrong.append(f"{place} imports {module}")
    assert not wrong, "\n".join(wrong)


def imported(node: ast.AST) -> list[str]:
    """Dotted names that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


OWN_TEXTS = (
    "print()",
    "print(help_text(argv))",
    "print(f'moe_lab {__version__}')",
    "print(CORRECTED)",
    "print(table_text(title, columns, terminal_width()))",  # its cells are escaped
)
PRINTS_ITSELF = (
    "config/terminal.py",
    "config/progress.py",
    "tasks/sandbox/inside.py",
    "tasks/sandbox/namespace.py",
)


def test_text_of_others_is_printed_without_its_control_characters():
    """By `print_line` and `print_message`; `print` is for text of this package's own."""
    bare = []
    for file in files_in(PACKAGE):
        if file.relative_to(PACKAGE).as_posix() in PRINTS_ITSELF:
            continue
        for node in nodes_of(file):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            ):
                bare.append(f"{file.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    own = [line for line in bare if line.endswith(OWN_TEXTS)]
    assert bare == own, bare
