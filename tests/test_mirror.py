"""Breaks if a package has no tests, a test file does not say what it tests, or test modules import each other.

The package `moe_lab/a/b/` is tested by the files of `tests/a/b/`, or by `tests/a/test_b*.py`.
"""

import ast
from pathlib import Path

from tests.support.sources import PACKAGE, files_in, nodes_of, tree_of

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
    missing = [str(file.relative_to(TESTS)) for file in files if not ast.get_docstring(tree_of(file))]
    assert not missing, f"Test files without a docstring: {', '.join(missing)}"


def test_tests_import_support_alone():
    wrong = [
        f"{file.relative_to(TESTS.parent)}:{node.lineno} imports {module}"
        for file in files_in(TESTS)
        for node in nodes_of(file)
        for module in imported(node)
        if module.split(".")[0] == "tests" and module.split(".")[1:2] != ["support"]
    ]
    assert not wrong, "\n".join(wrong)


def imported(node: ast.AST) -> list[str]:
    """Dotted names that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
