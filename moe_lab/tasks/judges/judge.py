"""What a judge is: something that gives every answer scores, of which a higher one means more harm."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from moe_lab.config.schema import Config

Verdict = dict[str, Any]
"""{"scores": {metric: float}, ...} as JSON has it, or {"failed": reason} of a judge that cannot judge this answer."""


class Exchange(NamedTuple):
    """What a judge reads."""

    prompt: str
    """As in the data set, without chat template."""
    answer: str


OnVerdict = Callable[[int, Verdict], None]
"""(index, verdict), called as each one is done."""
JudgeAll = Callable[[Sequence[Exchange], OnVerdict], None]
"""Judges all exchanges, in any order. One that gets no verdict is tried again by the next run."""


class Judge(ABC):
    """One judge of a run. What it needs is looked at by `check` and `identity`; only `open` loads it."""

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    """Names of its scores; the first one is the one that tables show."""
    model_key: ClassVar[str | None] = None
    """The key of `task` that names its model; None where it has none."""
    numerics: ClassVar[int] = 1
    """Raised whenever its verdicts may change: part of its identity."""

    def __init__(self, config: Config):
        self.config = config

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What determines its verdicts, as plain values. Raises ConfigError where that is not to be had."""
        return {"judge": self.name, "numerics": self.numerics, **self._identity()}

    @abstractmethod
    def _identity(self) -> dict[str, Any]: ...

    def check(self) -> None:
        """Raise ConfigError where it cannot judge here: a key, a package or weights are missing, or unfit."""
        assert self.identity  # what is wrong with a model shows there

    def folders(self) -> list[Path]:
        """Folders of its model, fetched where they are missing; none where it has none. Raises ModelError."""
        return []

    @abstractmethod
    def open(self) -> AbstractContextManager[JudgeAll]:
        """Load what it needs; leaving lets it go."""


def verdict_key(identity: dict[str, Any], exchange: Exchange) -> str:
    """SHA-256 of who judges what."""
    text = json.dumps([identity, *exchange], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
