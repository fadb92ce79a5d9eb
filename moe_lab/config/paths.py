"""The folders `conf` and `experiments`: beside the package in a checkout, inside it in a wheel; `conf` of plug-ins."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
METHODS = "moe_lab.methods"
"""The entry-point group of plug-ins with methods."""


def resource_folder(name: str) -> Path:
    """The folder `conf` or `experiments`. Raises FileNotFoundError if the installation lacks it."""
    for folder in (PACKAGE / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name}/ is neither in {PACKAGE} nor beside it: the installation is incomplete.")


def plugin_folders() -> list[Path]:
    """The folder `conf` of every installed plug-in package that has one. No plug-in is imported."""
    return list(_plugin_folders(tuple(sys.path)))


@cache
def _plugin_folders(search_path: tuple[str, ...]) -> tuple[Path, ...]:
    from importlib.metadata import entry_points  # takes a quarter of `--help`

    packages = sorted({entry.module.partition(".")[0] for entry in entry_points(group=METHODS)})
    specs = [find_spec(package) for package in packages]
    folders = [
        Path(place) / "conf" for spec in specs if spec for place in spec.submodule_search_locations or ()
    ]
    return tuple(folder for folder in folders if folder.is_dir())
