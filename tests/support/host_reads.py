"""Counts where a program would wait for a device: values that the host reads, and shapes that depend on values.

with HostReads() as reads:
    step()
assert reads.count == 1, reads.places
"""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_READS = {
    getattr(torch.Tensor, name)
    for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
}
_SHAPES = (
    "aten::nonzero",
    "aten::masked_select",
    "aten::bincount",
    "aten::_unique",
    "aten::unique",
    "aten::equal",
)


class HostReads:
    """Inside the context `places` gets the source line of every read."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self._modes = _Functions(self), _Operators(self)

    @property
    def count(self) -> int:
        return len(self.places)

    def note(self, what: str) -> None:
        frames = [frame for frame in traceback.extract_stack() if "/torch/" not in frame.filename]
        place = next(frame for frame in reversed(frames) if frame.filename != __file__)
        self.places.append(f"{what} in {place.filename}:{place.lineno}: {place.line}")

    def __enter__(self) -> HostReads:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, trace)


class _Functions(TorchFunctionMode):
    """Methods of tensors that return Python values."""

    def __init__(self, reads: HostReads):
        super().__init__()
        self.reads = reads

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _READS:
            self.reads.note(function.__name__)
        return function(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """Operators whose result has a shape that depends on values. An index of booleans is one."""

    def __init__(self, reads: HostReads):
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator._schema.name
        if name.startswith(_SHAPES) or (name.startswith("aten::index") and _has_booleans(args)):
            self.reads.note(name)
        return operator(*args, **(kwargs or {}))


def _has_booleans(args: Any) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices)
