"""The syntax trees of this repository's Python files, parsed once per process."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "moe_lab"


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    """All nodes of a file's tree."""
    return list(ast.walk(tree_of(file)))


@cache
def files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))
