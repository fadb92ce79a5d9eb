"""Tasks of the user whose YAML names its data: files, a folder or a function. `data_dir` does not replace them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lm_eval

PACKAGES = (Path(__file__).resolve().parent, Path(lm_eval.__file__).resolve().parent)
"""Folders of packages, whose YAMLs are not the user's."""


def has_own_files(yaml_path: Path | None, config: dict[str, Any]) -> bool:
    """Whether a task configuration comes from a YAML of the user and names local data."""
    if yaml_path is None or any(folder in Path(yaml_path).resolve().parents for folder in PACKAGES):
        return False
    function = config.get("custom_dataset")
    if function is not None:
        return not str(getattr(function, "__module__", "")).startswith(
            "moe_lab."
        )  # else of a YAML it includes
    path = config.get("dataset_path")
    if path is None:
        return False
    return _names_files(path, config.get("dataset_kwargs") or {}) or Path(path).is_dir()


def _names_files(path: str, options: dict[str, Any]) -> bool:
    """Whether `path` is a file format of `datasets`, with local files."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FORMATS

    files = options.get("data_files") or options.get("data_dir")
    return path in FORMATS and files is not None and "://" not in str(files)
