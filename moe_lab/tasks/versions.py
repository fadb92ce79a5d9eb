"""Versions of this package's task functions, which represent the functions in run ids.

A change that may change scores raises the function's version. Any other change leaves run ids as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

F = TypeVar("F", bound=Callable)
FIRST = Path(__file__).with_name("first_versions.json")
"""The source of the oldest functions at version 1. Earlier run ids were made of it, and stay valid."""


def versioned(name: str, version: int) -> Callable[[F], F]:
    """Decorator of a task's function (a filter, `process_docs`, `process_results`).

    Args:
        name: the function's name in run ids; it stays when the function moves.
        version: raised whenever scores may change.
    """

    def mark(function: F) -> F:
        function.identity = _first().get(name, f"{name} 1") if version == 1 else f"{name} {version}"  # type: ignore[attr-defined]
        return function

    return mark


@cache
def _first() -> dict[str, str]:
    return json.loads(FIRST.read_text(encoding="utf-8"))
