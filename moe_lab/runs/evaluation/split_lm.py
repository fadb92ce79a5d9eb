"""The LM of a model whose layers are split over the processes of torchrun: `model.load.tp_plan`.

Each process computes a part of every layer, and they sum the parts. So all make the same passes
over the same requests, which process 0 broadcasts. Its answers are those of the run.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.engine.engine import KVEngine
from moe_lab.engine.lm import EngineLM, OnAnswer, Request
from moe_lab.engine.scoring import Budget
from moe_lab.models.distributed import broadcast
from moe_lab.runs.distributed import follower_lm


class SplitLM:
    """The `EngineLM` of process 0. The other processes make its passes with it."""

    def __init__(self, lm: EngineLM):
        self._lm = lm

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        """As `EngineLM.answer`."""
        broadcast(partial(_answer, kind, list(requests), self._lm.budget))
        self._lm.answer(kind, requests, on_answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lm, name)


@contextmanager
def split_lm(opening: AbstractContextManager[EngineLM], config: Config) -> Iterator[SplitLM]:
    """The LM that `opening` opens, which is opened in all processes: that may make passes, too."""
    broadcast(partial(_open, config))
    with opening as lm:
        lm.can_halve_passes = False
        yield SplitLM(lm)
    broadcast(_close)


_opened = ExitStack()
"""Of another process than process 0: closes its LM."""
_lms: list[EngineLM] = []
"""The LM that is open in another process than process 0."""


def _open(config: Config) -> None:
    """Open the LM of a run in this process."""
    lm = _opened.enter_context(follower_lm(config))
    lm.can_halve_passes = False
    _lms.append(lm)


def _answer(kind: str, requests: list[Request], budget: Budget) -> None:
    """Make the passes of process 0, in its sizes. The answers are dropped."""
    [lm] = _lms
    lm.budget = budget
    if isinstance(lm.engine, KVEngine):
        lm.engine.budget = budget
    lm.answer(kind, requests, lambda index, answer: None)


def _close() -> None:
    _lms.clear()
    _opened.close()
