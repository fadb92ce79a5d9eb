"""Digests of code as a part of run ids: of a task's own files and of what they import, and of
plug-ins.

Of a task's files they are made of the syntax trees, which comments and layout leave as they are; of
a plug-in of the files themselves.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import invalidate_caches
from importlib.util import find_spec
from itertools import product
from os.path import relpath
from pathlib import Path
from typing import Any, NamedTuple

from moe_lab.errors import ConfigError, TaskError


def module_digest(name: str) -> str | None:
    """`code_digest` of an imported module; None if it has no Python file."""
    module_file = getattr(sys.modules.get(name), "__file__", None)
    if not module_file or not module_file.endswith(".py"):
        return None
    file = Path(module_file).resolve()
    if file not in _digests:
        _digests[file] = code_digest(file)
    return _digests[file]


_digests: dict[Path, str] = {}
"""The digests of imported modules, made once in a command: the 118 tasks of BIG-bench name the same
functions."""
_read: dict[Path, bytes] = {}
"""The files that digests were made of, as they were when they were read."""
_files_of: dict[Path, frozenset[Path]] = {}
"""The files that the digest of a file was made of."""
KEPT = ("moe_lab", "lm_eval")
"""Packages that a process imports once."""


def forget_edited_code() -> None:
    """Forget the modules of tasks that an edit since their import concerns: the next import is that
    of a new process.

    An edit concerns the module and all modules that import it. Called at the begin of a command.
    """
    edited: set[Path] = set()
    for file, content in _read.items():
        if not file.is_file() or file.read_bytes() != content:
            edited.add(file)
    if not edited:
        return
    concerned: set[Path] = set()
    for files in _files_of.values():
        if files & edited:
            concerned |= files
    for name, module in list(sys.modules.items()):
        module_file = getattr(module, "__file__", None)
        if module_file is None or Path(module_file).resolve() not in concerned:
            continue
        if name.partition(".")[0] in KEPT:
            concerned.discard(Path(module_file).resolve())
        else:
            del sys.modules[name]
    for changed in concerned:
        _read.pop(changed, None)
        _digests.pop(changed, None)
    invalidate_caches()


@cache
def source_digest(package: str) -> str:
    """SHA-256 of the Python files of a plug-in's top-level package or module, by name and content.

    It is part of the plug-in's version, because plug-ins may change without raising `numerics`.
    Raises ConfigError if there are no files to read.
    """
    spec = find_spec(package)
    assert spec is not None, f"{package} is imported"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files: list[tuple[str, Path]] = []
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            files.append((file.relative_to(folder).as_posix(), file))
    if not folders and spec.origin and Path(spec.origin).is_file():
        module = Path(spec.origin)
        files.append((module.name, module))
    if not files:
        raise ConfigError(
            f"The package {package} has no source files. Install it as files: a result depends on "
            "them."
        )
    digest = hashlib.sha256()
    for name, file in files:
        content = file.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def code_digest(file: Path, folder: Path | None = None) -> str:
    """SHA-256 of a Python file's syntax tree, and of those of the files of `folder` that it
    imports, recursively.

    The place of the folder does not count. Files that are read without an import statement do not
    count, either.

    Args:
        folder: default: the file's own.
    """
    return _digest_of(_code(file, folder))


def imports_digest(file: Path) -> str | None:
    """`code_digest` of the files of its own folder that a file imports, without itself; None if it
    imports none."""
    code = _code(file)
    del code[file.name]
    return _digest_of(code) if code else None


def _digest_of(code: dict[str, str]) -> str:
    """SHA-256 of what `_code` returns."""
    return hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()


def _code(file: Path, folder: Path | None = None) -> dict[str, str]:
    """The syntax trees, as text, of a file and of the files of `folder` that it imports, by path
    relative to the file's own folder."""
    file = file.resolve()
    folder = file.parent if folder is None else folder.resolve()
    if not file.is_relative_to(folder):
        folder = file.parent
    _read[file] = file.read_bytes()
    text_of: dict[str, str] = {}
    seen = {file}
    unread = [file]
    while unread:
        source_file = unread.pop()
        parsed = _parsed(_source(source_file), source_file)
        text_of[relpath(source_file, file.parent)] = parsed.text
        for imported_file in _imported(parsed.tree, source_file, folder):
            if imported_file not in seen:
                seen.add(imported_file)
                unread.append(imported_file)
    _files_of[file] = frozenset(seen)
    return text_of


def _source(file: Path) -> bytes:
    """An imported file as it was when it was first read: a command imports a module once, too."""
    if file not in _read:
        _read[file] = file.read_bytes()
    return _read[file]


class _ParsedFile(NamedTuple):
    """A Python file: its syntax tree, and `_text` of the tree."""

    tree: ast.Module
    text: str


@lru_cache(maxsize=1024)
def _parsed(source: bytes, file: Path) -> _ParsedFile:
    """The parsed content of a file. Raises TaskError for a syntax error."""
    try:
        tree = ast.parse(source, str(file))
    except SyntaxError as error:
        raise TaskError(
            f"{file}, line {error.lineno}: {error.msg}. The task imports this file."
        ) from error
    return _ParsedFile(tree, _text(tree))


def _text(node: Any) -> str:
    """A syntax tree as text, without docstrings.

    `ast.dump` differs between versions of Python. Here empty fields are left out (Python 3.12 added
    `type_params`, 3.13 no longer shows empty ones), and so is `kind` (the u of u"text").
    """
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            text = _text(value)
            if name != "kind" and text:
                fields.append(f"{name}={text}")
        return f"{type(node).__name__}({', '.join(fields)})"
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
    search_path = [place for place in file.parents if place.is_relative_to(folder.parent)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]
            bases = file.parents[node.level - 1 : node.level] if node.level else search_path
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            bases = search_path
        else:
            continue
        for base, name in product(bases, names):
            for module in _files_of_module(base, name):
                if module.is_relative_to(folder) and module.is_file():
                    yield module


def _files_of_module(base: Path, name: str) -> Iterator[Path]:
    """The files that an import of a dotted name may run: those of the packages in it, and of the
    module."""
    path = base
    for part in name.split("."):
        path = path / part
        yield path.with_name(f"{path.name}.py")
        yield path / "__init__.py"
