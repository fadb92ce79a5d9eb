"""What run ids contain of a function that a number depends on.

A function of this package has a name and a version number (`versioned`), so that its code may be
rewritten. Any other one has its qualified name and the digest of its module (`code_digest.py`).
"""

from collections.abc import Callable
from typing import Any, TypeVar

from moe_lab.results.code_digest import module_digest

Function = TypeVar("Function", bound=Callable)
VERSION = "moe_lab_version"
"""The attribute of a function with its name and version number."""


def versioned(name: str, number: int) -> Callable[[Function], Function]:
    """Give a function of this package a name and a version number, which stand for its code in run
    ids.

    Both stay when the function moves or is written in another way. The number is raised when it
    returns something else: `tests/tasks/test_versioned_functions.py` keeps what it returns.
    """

    def mark(function: Function) -> Function:
        setattr(function, VERSION, (name, number))
        return function

    return mark


def version_of(function: Any) -> tuple[str, int] | None:
    """Name and version number of a `versioned` function; None for any other one.

    A function of a user's that wraps a versioned one has its attributes (`functools.wraps`), and
    code of its own.
    """
    if hasattr(function, "__wrapped__"):
        return None
    return getattr(function, VERSION, None)


def function_identity(function: Any) -> list[object]:
    """[name, version number] of a `versioned` function; else [qualified name, digest of the
    module].

    An object that can be called has those of its class. The digest is None for a module without a
    Python file.
    """
    version = version_of(function)
    if version is not None:
        return list(version)
    named = function if hasattr(function, "__qualname__") else type(function)
    return [named.__qualname__, module_digest(named.__module__)]
