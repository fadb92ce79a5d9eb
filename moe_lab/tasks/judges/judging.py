"""Judges the answers of a run. Stored verdicts are read from judgements.jsonl, new ones are appended to it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from moe_lab.config.progress import Progress
from moe_lab.results.logs import ResponseLog
from moe_lab.tasks.judges import Exchange, Judge, Verdict, judged_by

JUDGEMENTS = "judgements.jsonl"
HEADER = {"judgements": 1}
"""The first line of judgements.jsonl. The judge's identity is a part of the key of each verdict."""
ROOM = 2
"""Estimated memory of a judge in multiples of its weight files: weights and activations."""


@contextmanager
def judging(judges: Sequence[Judge], folder: Path, rerun: bool, free: Callable[[], None]) -> Iterator[None]:
    """Within this context, lm-eval's evaluation of a judged task calls the judges of the run in `folder`.

    Args:
        free: as in `Session`.
    """
    if not judges:
        yield
        return
    log = ResponseLog(judgements_file(folder, rerun), HEADER)
    try:
        with judged_by(Session(judges, log, free).verdicts):
            yield
    finally:
        log.close()


def judgements_file(folder: Path, rerun: bool) -> Path:
    """The file with the verdicts of a run; an unfinished rerun has its own."""
    return folder / ("judgements.rerun.jsonl" if rerun else JUDGEMENTS)


class Session:
    """Verdicts by judge and exchange.

    Args:
        log: stores every verdict at once, by a hash of the judge's identity and the exchange.
        free: removes the evaluated model from memory if a judge needs the space.
    """

    def __init__(self, judges: Sequence[Judge], log: ResponseLog, free: Callable[[], None]):
        self.judges, self.log, self.free = judges, log, free

    def verdicts(self, exchanges: Sequence[Exchange]) -> list[dict[str, Verdict | None]]:
        """The verdict of each judge by name, per exchange; None if the judge could not be reached."""
        by_judge: list[dict[str, Verdict | None]] = [{} for _ in exchanges]
        for judge in self.judges:
            contents = (json.dumps([judge.identity, *exchange], sort_keys=True) for exchange in exchanges)
            keys = [hashlib.sha256(content.encode()).hexdigest() for content in contents]
            missing = {key: one for key, one in zip(keys, exchanges, strict=True) if key not in self.log}
            if missing:
                self._judge(judge, missing)
            for verdicts, key in zip(by_judge, keys, strict=True):
                verdicts[judge.name] = self.log.get(key)
        return by_judge

    def _judge(self, judge: Judge, missing: dict[str, Exchange]) -> None:
        from moe_lab.models.facts import resolve_device
        from moe_lab.models.identity import known_weights
        from moe_lab.models.memory import free_memory

        keys, start = list(missing), time.perf_counter()
        if (folder := judge.folder()) is not None:
            files = [folder / name for name in known_weights(folder)]
            room = ROOM * sum(file.stat().st_size for file in files)
            if room > free_memory(resolve_device(judge.config.device)):
                self.free()
        with (
            Progress(len(keys), f"judge {judge.name}", "answer") as progress,
            judge.open() as judge_all,
        ):

            def store(index: int, verdict: Verdict) -> None:
                self.log.answer(keys[index], verdict, {})
                progress.update()

            judge_all(list(missing.values()), store)
        self.log.spend({judge.name: time.perf_counter() - start})
