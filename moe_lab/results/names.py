"""Names of folders."""

import re
from collections.abc import Iterable


def folder_name(*parts: str, digest: str) -> str:
    """The parts and the first 8 digits of an id, joined by "-": `olmoe-base-piqa-1f3c9a02`.

    Characters other than letters, digits, ".", "_" and "-" become "-".
    """
    safe_parts = [re.sub(r"[^A-Za-z0-9._-]", "-", part) for part in (*parts, digest[:8])]
    return "-".join(safe_parts)


def task_label(names: str | Iterable[str]) -> str:
    """The names of tasks as a part of a folder's name."""
    label = names if isinstance(names, str) else "-".join(names)
    return label[:60]
