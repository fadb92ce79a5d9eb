"""The source of a plug-in's package, which stands for its version: nobody here raises its `numerics`."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from moe_lab.errors import ConfigError


@cache
def source_digest(package: str) -> str:
    """SHA-256 of the Python files of a top-level package or module, by name and content.

    Raises ConfigError where there are none to read.
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
