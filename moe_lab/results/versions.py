"""The versions of the packages that a result was made with."""

import platform
from functools import cache
from importlib.metadata import version

from moe_lab.config import __version__

SCHEMA_VERSION = 1
LIBRARIES = ("lm_eval", "transformers", "torch", "datasets")
DECISIVE = ("moe_lab", "lm_eval", "transformers")
"""Packages whose version may change numbers. A result of another version is shown with a mark."""


def versions() -> dict[str, str | None]:
    """Versions of this package, Python and the libraries that numbers depend on. Imports none of
    them."""
    return {
        "moe_lab": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
    }


def decisive_versions() -> dict[str, str | None]:
    """Versions of the packages that may change numbers."""
    return {name: version for name, version in versions().items() if name in DECISIVE}


# a package's metadata is a large file, and a plan of many runs asks for each of them
_version = cache(version)
