"""What a run's id is made of, and the versions that a result was made with."""

import ast
import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache, partial
from importlib import invalidate_caches
from importlib.metadata import version
from importlib.util import find_spec
from inspect import unwrap
from itertools import product
from os.path import relpath
from pathlib import Path
from typing import Any

from moe_lab.config import __version__
from moe_lab.errors import ConfigError, TaskError
from moe_lab.models.lm_eval_internals import set_settings

# Versions of the packages that produce a result

SCHEMA_VERSION = 1
LIBRARIES = ("lm_eval", "transformers", "torch", "datasets")
DECISIVE = ("moe_lab", "lm_eval", "transformers")
"""Packages whose version may change numbers. A result of another version is shown with a mark."""


def versions() -> dict[str, str | None]:
    """Versions of this package, Python and the libraries that numbers depend on. Imports none of them."""
    return {
        "moe_lab": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
    }


def decisive_versions() -> dict[str, str | None]:
    """Versions of the packages that may change numbers."""
    return {name: version for name, version in versions().items() if name in DECISIVE}


_version = cache(version)
"""Read once: a package's metadata is a large file, and a plan of many runs asks for each of them."""


# Run ids: the SHA-256 of all that determines a run's numbers, and of nothing else
#
# The device and the speed are recorded, not hashed. The three sets below classify every field of `Config`.

HASHED = frozenset(
    {"apply_chat_template", "fewshot_as_multiturn", "fewshot_seed", "max_length"}
    | {"predict_only", "system_instruction"}
)
"""Fields that are hashed as they are."""
RESOLVED = frozenset(
    {"model", "method", "task", "seed", "dtype", "limit", "samples", "sample_seed", "num_fewshot"}
    | {"gen_kwargs", "data_dir"}
)
"""Fields that are hashed as what they resolve to: content, document numbers, the task's settings, the dtype."""
RUNTIME = frozenset(
    {"mode", "seeds", "batch_size", "max_batch_size", "device", "output_dir", "offline", "baseline", "rerun"}
    | {"wait", "metrics", "experiment", "scale", "overrides", "config_dirs", "logger", "launcher"}
    | {"tuning", "distributed", "a", "b"}
)
"""Fields that do not change numbers. The temperatures of a tuned run are part of its method."""

UNNAMED = frozenset({"custom_dataset", "dataset_kwargs", "metadata", "task_alias", "tag"})
"""Keys of an lm-eval task that are not hashed: paths and names. The documents themselves are."""


def run_id(content: Mapping[str, object]) -> str:
    """SHA-256 of the canonical JSON: sorted keys, no spaces, no NaN."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def task_settings(task: Any) -> dict[str, object]:
    """An lm-eval task's version, configuration and code, without paths and unset keys.

    A function is represented by its name and the digest of its module (`moe_lab.results.identity`).
    """
    settings = {key: value for key, value in set_settings(task.config).items() if key not in UNNAMED}
    if isinstance(choices := settings.get("doc_to_choice"), dict):
        settings["doc_to_choice"] = list(choices.items())  # their order counts
    code = getattr(task, "code", None)
    return {"version": str(task.VERSION), **_plain(settings)} | ({"code": _plain(code)} if code else {})


def group_settings(group: Any) -> dict[str, object]:
    """An lm-eval group's version, tasks, aggregated metrics and code."""
    metrics = _plain(group.aggregate_metric_list)
    code = _plain(getattr(group, "code", None))
    return {"version": group.version, "tasks": sorted(group.child_names), "metrics": metrics, "code": code}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    value = unwrap(value)
    if isinstance(value, partial):
        return {"call": _plain(value.func), "args": _plain(value.args), "kwargs": _plain(value.keywords)}
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return [named.__qualname__, module_digest(named.__module__)]
    return _plain(vars(value)) if hasattr(value, "__dict__") else str(value)


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
    edited = {file for file, content in _read.items() if not file.is_file() or file.read_bytes() != content}
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


def folder_name(*parts: str, digest: str) -> str:
    """The parts and the first 8 digits of an id, joined by "-", which replaces unsafe characters, too."""
    return "-".join(re.sub(r"[^A-Za-z0-9._-]", "-", part) for part in (*parts, digest[:8]))


def task_label(names: str | Iterable[str]) -> str:
    """The names of tasks as a part of a folder's name."""
    return (names if isinstance(names, str) else "-".join(names))[:60]


# The code that a task comes from: syntax trees, which comments and layout leave as they are


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
        new = [other for other in _imported(tree, one, folder) if relpath(other, file.parent) not in found]
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
