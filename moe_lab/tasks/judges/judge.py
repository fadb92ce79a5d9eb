"""The interface of judges, which score the harm of answers: a higher score means more harm."""

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
"""{"scores": {metric: float}, ...}, or {"failed": reason} for an answer that the judge cannot judge. Plain JSON."""


class Exchange(NamedTuple):
    """A prompt and the answer to judge."""

    prompt: str
    """The text of the data set, without chat template."""
    answer: str


OnVerdict = Callable[[int, Verdict], None]
"""(index, verdict); called for each verdict at once."""
JudgeAll = Callable[[Sequence[Exchange], OnVerdict], None]
"""Judges all exchanges, in any order. The next run repeats those without verdict."""


class Judge(ABC):
    """A judge of a run. `check` and `identity` load no weights, `open` does."""

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    """Names of the scores; tables show the first."""
    model_key: ClassVar[str | None] = None
    """The key of `task` that names the judge's model; None for a judge without one."""
    numerics: ClassVar[int] = 1
    """Raised whenever verdicts may change: part of the identity."""

    def __init__(self, config: Config):
        self.config = config

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that determines the verdicts, as plain values. Raises ConfigError if the model is not available."""
        return {"judge": self.name, "numerics": self.numerics, **self._identity()}

    @abstractmethod
    def _identity(self) -> dict[str, Any]: ...

    def check(self) -> None:
        """Raise ConfigError if the judge cannot work: a key, a package or weights are missing or unfit."""
        assert self.identity  # raises the errors of a model

    def folders(self) -> list[Path]:
        """Folders of the judge's model, fetched if they are missing; empty without a model. Raises ModelError."""
        return []

    @abstractmethod
    def open(self) -> AbstractContextManager[JudgeAll]:
        """Load the judge; leaving the context removes it from memory."""


def verdict_key(identity: dict[str, Any], exchange: Exchange) -> str:
    """SHA-256 of a judge's identity and an exchange."""
    text = json.dumps([identity, *exchange], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
