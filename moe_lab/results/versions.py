"""Versions of the packages that produce a result."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from moe_lab.config.version import __version__

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
    now = versions()
    return {name: now[name] for name in DECISIVE}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
