"""Where the files that come with the package lie: in a checkout beside it, in a wheel inside it."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def resource_folder(name: str) -> Path:
    """The folder `conf` or `experiments`. Raises FileNotFoundError where the installation lacks it."""
    for folder in (PACKAGE / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name}/ is neither in {PACKAGE} nor beside it: the installation is incomplete.")
