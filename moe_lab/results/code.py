"""The code that a task comes from, as a part of run ids: syntax trees, which comments and layout leave as they are."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import product
from os.path import relpath
from pathlib import Path
from typing import Any

from moe_lab.errors import TaskError


def code_digest(file: Path, folder: Path | None = None) -> str:
    """SHA-256 of a Python file's syntax tree, and of those of the files of `folder` that it imports, recursively.

    The place of the folder does not count. Files that are read without an import statement do not count, either.

    Args:
        folder: default: the file's own.
    """
    file = file.resolve()
    folder = folder.resolve() if folder else file.parent
    folder = folder if file.is_relative_to(folder) else file.parent
    found: dict[str, str] = {}
    left = {file: file.read_bytes()}
    while left:
        one, source = left.popitem()
        tree, text = _parsed(source, one)
        found[relpath(one, file.parent)] = text
        new = [other for other in _imported(tree, one, folder) if relpath(other, file.parent) not in found]
        left |= {other: _source(other) for other in new}
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()


@cache
def _source(file: Path) -> bytes:
    """An imported file as it was when it was first read: a process imports a module once, too."""
    return file.read_bytes()


@lru_cache(maxsize=1024)
def _parsed(source: bytes, file: Path) -> tuple[ast.Module, str]:
    try:
        tree = ast.parse(source, str(file))
    except SyntaxError as error:
        raise TaskError(f"{file}, line {error.lineno}: {error.msg}. The task imports this file.") from error
    return tree, _text(tree)


def _text(node: Any) -> str:
    """A syntax tree as text, without docstrings.

    `ast.dump` differs between versions of Python. Here empty fields are left out (Python 3.12 added `type_params`, 3.13
    no longer shows empty ones), and so is `kind` (the u of u"text").
    """
    if isinstance(node, ast.AST):
        fields = {name: _text(value) for name, value in ast.iter_fields(node) if name != "kind"}
        return (
            f"{type(node).__name__}({', '.join(f'{name}={text}' for name, text in fields.items() if text)})"
        )
    if isinstance(node, list):
        items = [_text(item) or "None" for item in node if not _is_docstring(item)]
        return f"[{', '.join(items)}]" if items else ""
    return "" if node is None else repr(node)


def _is_docstring(node: Any) -> bool:
    """Whether a statement is a string, which has no effect."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _imported(tree: ast.Module, file: Path, folder: Path) -> Iterator[Path]:
    """The files of `folder` that the import statements of a file may name."""
    places = [place for place in file.parents if place.is_relative_to(folder.parent)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]
            bases = file.parents[node.level - 1 : node.level] if node.level else places
        elif isinstance(node, ast.Import):
            names, bases = [alias.name for alias in node.names], places
        else:
            continue
        for base, name in product(bases, names):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                at = base.joinpath(*parts[:end])
                files = (at.with_name(f"{at.name}.py"), at / "__init__.py")
                yield from (one for one in files if one.is_relative_to(folder) and one.is_file())
