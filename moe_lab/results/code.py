"""The code that a number comes from, as a part of run ids.

Of a task's own files it is their syntax trees, which comments and layout leave as they are, of a plug-in its files. The
functions of this package have a name and a version number instead (`versioned`), so that their code may be rewritten.
"""

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib import invalidate_caches
from importlib.util import find_spec
from itertools import product
from os.path import relpath
from pathlib import Path
from typing import Any, TypeVar

from moe_lab.errors import ConfigError, TaskError

Function = TypeVar("Function", bound=Callable)
VERSION = "moe_lab_version"
"""The attribute of a function with its name and version number."""


def versioned(name: str, number: int) -> Callable[[Function], Function]:
    """Give a function of this package a name and a version number, which stand for its code in run ids.

    Both stay when the function moves or is written in another way. The number is raised when it returns something else:
    `tests/tasks/test_versioned_functions.py` keeps what it returns.
    """

    def mark(function: Function) -> Function:
        setattr(function, VERSION, (name, number))
        return function

    return mark


def version_of(function: Any) -> tuple[str, int] | None:
    """Name and version number of a `versioned` function; None for any other one.

    A function of a user's that wraps a versioned one has its attributes (`functools.wraps`), and code of its own.
    """
    if hasattr(function, "__wrapped__"):
        return None
    return getattr(function, VERSION, None)


def function_identity(function: Any) -> list[object]:
    """Name and version number of a `versioned` function; else qualified name and digest of the module.

    An object that can be called has those of its class.
    """
    version = version_of(function)
    if version is not None:
        return list(version)
    named = function if hasattr(function, "__qualname__") else type(function)
    return [named.__qualname__, module_digest(named.__module__)]


def module_digest(name: str) -> str | None:
    """`code_digest` of an imported module; None if it has no Python file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return _imported_digest(Path(file).resolve()) if file and file.endswith(".py") else None


def _imported_digest(file: Path) -> str:
    """Made once in a command, which imports a module once, too: the 118 tasks of BIG-bench name the same functions."""
    if file not in _digests:
        _digests[file] = code_digest(file)
    return _digests[file]


_digests: dict[Path, str] = {}
"""The digests of imported modules."""
_read: dict[Path, bytes] = {}
"""The files that digests were made of, as they were when they were read."""
_files_of: dict[Path, frozenset[Path]] = {}
"""The files that the digest of a file was made of."""
KEPT = ("moe_lab", "lm_eval")
"""Packages that a process imports once."""


def forget_edited_code() -> None:
    """Forget the modules of tasks that an edit since their import concerns: the next import is that of a new process.

    An edit concerns the module and all modules that import it. Called at the begin of a command.
    """
    edited = {
        file
        for file, content in _read.items()
        if not file.is_file() or file.read_bytes() != content
    }
    if not edited:
        return
    concerned: set[Path] = set()
    for files in _files_of.values():
        if files & edited:
            concerned |= files
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or Path(file).resolve() not in concerned:
            continue
        if name.partition(".")[0] in KEPT:
            concerned.discard(Path(file).resolve())
        else:
            del sys.modules[name]
    for changed in concerned:
        _read.pop(changed, None)
        _digests.pop(changed, None)
    invalidate_caches()


@cache
def source_digest(package: str) -> str:
    """SHA-256 of the Python files of a plug-in's top-level package or module, by name and content.

    It is part of the plug-in's version, because plug-ins may change without raising `numerics`. Raises ConfigError if
    there are no files to read.
    """
    spec = find_spec(package)
    assert spec is not None, f"{package} is imported"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [(folder, file) for folder in folders for file in sorted(folder.rglob("*.py"))]
    if not folders and spec.origin and Path(spec.origin).is_file():
        files = [(Path(spec.origin).parent, Path(spec.origin))]
    if not files:
        raise ConfigError(
            f"The package {package} has no source files. Install it as files: a result depends on them."
        )
    digest = hashlib.sha256()
    for folder, file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def code_digest(file: Path, folder: Path | None = None) -> str:
    """SHA-256 of a Python file's syntax tree, and of those of the files of `folder` that it imports, recursively.

    The place of the folder does not count. Files that are read without an import statement do not count, either.

    Args:
        folder: default: the file's own.
    """
    return _digest_of(_code(file, folder))


def imports_digest(file: Path) -> str | None:
    """`code_digest` of the files of its own folder that a file imports, without itself; None if it imports none."""
    code = _code(file)
    del code[file.name]
    return _digest_of(code) if code else None


def _digest_of(code: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()


def _code(file: Path, folder: Path | None = None) -> dict[str, str]:
    """The syntax trees of a file and of the files of `folder` that it imports, by their paths from the file's own."""
    file = file.resolve()
    folder = folder.resolve() if folder else file.parent
    folder = folder if file.is_relative_to(folder) else file.parent
    found: dict[str, str] = {}
    _read[file] = file.read_bytes()
    files = {file}
    left = {file: _read[file]}
    while left:
        one, source = left.popitem()
        tree, text = _parsed(source, one)
        found[relpath(one, file.parent)] = text
        new = [
            other
            for other in _imported(tree, one, folder)
            if relpath(other, file.parent) not in found
        ]
        left |= {other: _source(other) for other in new}
        files.update(new)
    _files_of[file] = frozenset(files)
    return found


def _source(file: Path) -> bytes:
    """An imported file as it was when it was first read: a command imports a module once, too."""
    if file not in _read:
        _read[file] = file.read_bytes()
    return _read[file]


@lru_cache(maxsize=1024)
def _parsed(source: bytes, file: Path) -> tuple[ast.Module, str]:
    try:
        tree = ast.parse(source, str(file))
    except SyntaxError as error:
        raise TaskError(
            f"{file}, line {error.lineno}: {error.msg}. The task imports this file."
        ) from error
    return tree, _text(tree)


def _text(node: Any) -> str:
    """A syntax tree as text, without docstrings.

    `ast.dump` differs between versions of Python. Here empty fields are left out (Python 3.12 added `type_params`, 3.13
    no longer shows empty ones), and so is `kind` (the u of u"text").
    """
    if isinstance(node, ast.AST):
        fields = {name: _text(value) for name, value in ast.iter_fields(node) if name != "kind"}
        return f"{type(node).__name__}({', '.join(f'{name}={text}' for name, text in fields.items() if text)})"
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
