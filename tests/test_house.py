"""The house rules of imports, tests and printing.

Breaks if an import runs upward, if files or folders import each other in a circle, or if a module
has no floor. Every import counts: within functions and under `TYPE_CHECKING`, too.

Breaks if a package has no tests, a test file does not say what it tests, or test modules
import each other. The package `moe_lab/a/b/` is tested by the files of `tests/a/b/`,
or by `tests/a/test_b*.py`.

Breaks if a text of others is printed with its control characters.
"""

import ast
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.support.sources import PACKAGE, files_in, nodes_of, tree_of

TESTS = Path(__file__).resolve().parent
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
    """The imported module, in the same form."""
    place: str
    """File and line."""


@cache
def modules() -> dict[str, Path]:
    """{`a.b`: its file}; moe_lab/__init__.py is ``."""
    return {module_name(file): file for file in files_in(PACKAGE)}


def module_name(file: Path) -> str:
    parts = list(file.relative_to(PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


@cache
def imports() -> list[Import]:
    """The imports of moe_lab's modules among each other, without those of moe_lab/__init__.py."""
    all_imports: list[Import] = []
    for name, file in modules().items():
        if name:
            all_imports += imports_of(name, file)
    return all_imports


def imports_of(name: str, file: Path) -> Iterator[Import]:
    for node in nodes_of(file):
        for imported in imported_names(node):
            if imported.split(".")[0] != "moe_lab":
                continue
            target = module_of(imported.removeprefix("moe_lab").removeprefix("."))
            if target and target != name:
                yield Import(name, target, place_of(file, node))


def imported_names(node: ast.AST) -> list[str]:
    """Dotted names that a statement imports: `a.b.c` of `from a.b import c`."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return []


def module_of(name: str) -> str:
    """The module that a name is, or else that it is imported from."""
    if name in modules():
        return name
    return name.rpartition(".")[0]


def place_of(file: Path, node: ast.AST) -> str:
    return f"{file.relative_to(PACKAGE.parent)}:{node.lineno}"


# Imports


def test_every_entry_has_a_floor():
    not_modules = ("__pycache__", "__init__.py", "py.typed")
    entries = {path.stem for path in PACKAGE.iterdir() if path.name not in not_modules}
    assert entries == set(FLOORS)
    assert len(FLOORS) <= 14


def test_no_import_runs_upward():
    upward = []
    for an_import in imports():
        source_floor = FLOORS.index(an_import.source.split(".")[0])
        target_floor = FLOORS.index(an_import.target.split(".")[0])
        if source_floor < target_floor:
            upward.append(f"{an_import.place} imports moe_lab.{an_import.target}")
    assert not upward, "\n".join(upward)


def test_no_module_uses_the_python_interface():
    """`from moe_lab import RoE` is for users. In the package it would run
    upward, whatever it names."""
    entries = {path.stem for path in PACKAGE.iterdir()}
    uses = []
    for file in modules().values():
        for node in nodes_of(file):
            if not isinstance(node, ast.ImportFrom) or node.module != "moe_lab":
                continue
            for alias in node.names:
                if alias.name not in entries:
                    uses.append(f"{place_of(file, node)} imports {alias.name}")
    assert not uses, "\n".join(uses)


def test_training_data_sets_have_names_of_their_own():
    """Two classes named PackedRows were once confused: rows of a corpus,
    and rows of the toy corpus."""
    names = []
    for file in modules().values():
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef) and is_data_set(node):
                names.append(node.name)
    assert names
    assert sorted(names) == sorted(set(names))


def is_data_set(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).startswith("Dataset") for base in node.bases)


# Circles


def circle(edges: dict[str, set[str]]) -> list[str] | None:
    """Names on a circle, the first one twice; None where there is none."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for target in sorted(edges.get(name, ())):
            names = search(target, [*path, name])
            if names is not None:
                return names
        done.add(name)
        return None

    for name in sorted(edges):
        names = search(name, [])
        if names is not None:
            return names
    return None


def assert_no_circle(places: dict[tuple[str, str], str]) -> None:
    """`places` has an import's place for each pair of an importing and an imported name."""
    edges: dict[str, set[str]] = {}
    for source, target in places:
        edges.setdefault(source, set()).add(target)
    names = circle(edges)
    if names is None:
        return
    steps = []
    for source, target in pairwise(names):
        steps.append(f"{source} -> {target} ({places[source, target]})")
    raise AssertionError("\n".join(steps))


def test_circles_are_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) is None


def test_no_files_import_each_other():
    places = {(an_import.source, an_import.target): an_import.place for an_import in imports()}
    assert places
    assert_no_circle(places)


def test_no_folders_import_each_other():
    places = {}
    for an_import in imports():
        source = folder_of(an_import.source)
        target = folder_of(an_import.target)
        one_holds_the_other = source.startswith(target) or target.startswith(source)
        if not one_holds_the_other:
            places[source, target] = an_import.place
    assert places
    assert_no_circle(places)


def folder_of(name: str) -> str:
    """`a.b.` for a module in moe_lab/a/b/."""
    folders = modules()[name].parent.relative_to(PACKAGE).parts
    return "".join(f"{folder}." for folder in folders)


# Tests


def test_every_package_has_tests():
    packages = {file.parent.relative_to(PACKAGE) for file in files_in(PACKAGE)}
    missing = sorted(str(package) for package in packages if not has_tests(package))
    assert not missing, f"Packages of moe_lab without tests: {', '.join(missing)}"


def has_tests(package: Path) -> bool:
    """`package` is relative to moe_lab/."""
    mirror = TESTS / package
    files = list(mirror.rglob("test_*.py"))
    files += mirror.parent.glob(f"test_{package.name}*.py")
    return len(files) > 0


def test_every_test_file_says_what_it_tests():
    missing = []
    for file in files_in(TESTS):
        if file.name.startswith("test_") and not ast.get_docstring(tree_of(file)):
            missing.append(str(file.relative_to(TESTS)))
    assert not missing, f"Test files without a docstring: {', '.join(missing)}"


def test_tests_import_support_alone():
    wrong = []
    for file in files_in(TESTS):
        for node in nodes_of(file):
            for imported in imported_names(node):
                parts = imported.split(".")
                if parts[0] == "tests" and parts[1:2] != ["support"]:
                    wrong.append(f"{place_of(file, node)} imports {imported}")
    assert not wrong, "\n".join(wrong)


# Printing

PRINTS_OF_OWN_TEXTS = (
    "print()",
    "print(help_text(argv))",
    "print(f'moe_lab {__version__}')",
    "print(CORRECTED)",
    "print(table_text(title, columns, terminal_width()))",  # its cells are escaped
)
FILES_THAT_PRINT = (
    "config/terminal.py",
    "config/progress.py",
    "tasks/sandbox/inside.py",
    "tasks/sandbox/namespace.py",
)


def test_text_of_others_is_printed_without_its_control_characters():
    """By `print_line` and `print_message`; `print` is for text of this package's own."""
    bare = []
    for file in files_in(PACKAGE):
        if file.relative_to(PACKAGE).as_posix() in FILES_THAT_PRINT:
            continue
        for node in nodes_of(file):
            if is_print(node) and ast.unparse(node) not in PRINTS_OF_OWN_TEXTS:
                bare.append(f"{place_of(file, node)}: {ast.unparse(node)}")
    assert not bare, "\n".join(bare)


def is_print(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return isinstance(node.func, ast.Name) and node.func.id == "print"
