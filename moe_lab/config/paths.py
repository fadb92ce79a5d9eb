"""The paths that a user gives."""

import os
from pathlib import Path


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path as a user gives it: `~` is the home folder. A shell leaves it as it is in
    `output_dir=~/x`."""
    return Path(os.path.expanduser(path))
