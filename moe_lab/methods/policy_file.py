"""The function of a policy in a file of the user's: `method.policy=<file>.py:<function>`."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from moe_lab.config.paths import user_path
from moe_lab.config.policy_arguments import takes_tokens
from moe_lab.config.validators import did_you_mean
from moe_lab.errors import ConfigError


class LoadedFunction(NamedTuple):
    """A policy of the user's."""

    function: Callable[..., Any]
    file_sha256: str
    """Of the file that it is in."""


def load_function(policy: Any) -> LoadedFunction:
    """The function `<file>.py:<function>`.

    Raises ConfigError for a file or function that is missing, a file that cannot be imported, and a
    function without arguments for router and routing, or with another one than `tokens` that has
    no default.
    """
    file, _, name = str(policy or "").rpartition(":")
    if not file:
        raise ConfigError(
            f"method.policy={policy or 'null'}: method=policy needs a file and a function (router, "
            "routing) in it: method.policy=my_idea.py:drop_weakest."
        )
    path = user_path(file)
    if not path.is_file():
        raise ConfigError(f"method.policy={policy}: there is no file {path}.")
    content = path.read_bytes()
    module = _module(path.resolve(), content)
    function = getattr(module, name, None)
    if not inspect.isfunction(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(
            f"method.policy={policy}: {path} has no function {name}.{did_you_mean(name, names)}"
        )
    try:
        inspect.signature(function).bind(*[None] * _positional(function))
    except TypeError as error:
        raise ConfigError(
            f"method.policy={policy}: its arguments must be router, routing, tokens where it needs "
            f"them, and keys with defaults ({error})."
        ) from error
    return LoadedFunction(function, hashlib.sha256(content).hexdigest())


@lru_cache(maxsize=64)
def _module(path: Path, content: bytes) -> Any:
    """The module of a file with this content. Raises ConfigError if it cannot be imported."""
    main = sys.modules["__main__"]
    main_file = getattr(main, "__file__", None)
    if main_file and Path(main_file).resolve() == path:
        return main  # a script that runs itself: importing it would run it again
    module = ModuleType(str(path))
    module.__file__ = str(path)
    if str(path) in sys.modules:
        raise ConfigError('it runs a command: write that below `if __name__ == "__main__":`')
    sys.modules[str(path)] = module  # where dataclasses look for their annotations
    try:
        exec(compile(content, path, "exec"), vars(module))
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        del sys.modules[str(path)]
    return module


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of the function's keys, which are its arguments after router, routing and
    tokens."""
    parameters = list(inspect.signature(function).parameters.values())
    keys = parameters[_positional(function) :]
    return {parameter.name: parameter.default for parameter in keys}


def _positional(function: Callable[..., Any]) -> int:
    """The number of arguments that are no keys: router, routing, and tokens if it takes them."""
    return 3 if takes_tokens(function) else 2
