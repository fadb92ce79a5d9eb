"""Hooks that a copy of the model does not have.

A context such as `record` puts hooks on modules. `copy.deepcopy` would copy them with the modules,
where nobody removes them, and `pickle` fails on functions that are defined inside others. So EMA
copies, best-so-far copies and `torch.save` inside a context get the plain model.
"""

from collections.abc import Callable
from typing import Any


def does_nothing(*args: Any, **kwargs: Any) -> None:
    """What a hook becomes in a copy: for torch, a hook that changes nothing."""


def _copied() -> Callable:
    return does_nothing


class TransientHook:
    """A hook of a context, as `register_forward_hook` and `register_forward_pre_hook` take it."""

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict) -> Callable:
        return does_nothing

    def __reduce__(self) -> tuple[Callable, tuple]:
        return _copied, ()
