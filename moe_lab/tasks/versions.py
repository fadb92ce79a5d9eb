"""Versions of this package's task functions: a run's identity holds them in the place of the functions' source.

A change of a function that may change scores raises its version. Any other change leaves run ids as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

F = TypeVar("F", bound=Callable)
FIRST = Path(__file__).with_name("first_versions.json")
"""What stands for version 1 of the oldest functions: their source when ids were made of it, so that ids stay."""


def versioned(name: str, version: int) -> Callable[[F], F]:
    """Decorator of a task's function (a filter, `process_docs`, `process_results`).

    Args:
        name: names the function in identities; it stays when the function moves.
        version: raised whenever scores may change.
    """

    def mark(function: F) -> F:
        function.identity = _first().get(name, f"{name} 1") if version == 1 else f"{name} {version}"  # type: ignore[attr-defined]
        return function

    return mark


@cache
def _first() -> dict[str, str]:
    return json.loads(FIRST.read_text(encoding="utf-8"))
