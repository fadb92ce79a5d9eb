"""Judges the answers of a run. Stored verdicts are read from judgements.jsonl, new ones are
appended to it."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from moe_lab.config.progress import Progress
from moe_lab.models.facts import resolve_device
from moe_lab.models.identity import known_weights
from moe_lab.models.memory import free_memory
from moe_lab.results.response_log import ResponseLog
from moe_lab.tasks.judges import Exchange, Judge, Verdict, judged_by

JUDGEMENTS = "judgements.jsonl"
HEADER = {"judgements": 1}
"""The first line of judgements.jsonl. The judge's identity is a part of the key of each verdict."""
ROOM = 2
"""Estimated memory of a judge in multiples of its weight files: weights and activations."""


@contextmanager
def judging(
    judges: Sequence[Judge], folder: Path, rerun: bool, free: Callable[[], None]
) -> Iterator[None]:
    """Within this context, lm-eval's evaluation of a judged task calls the judges of the run in
    `folder`.

    Args:
        free: removes the evaluated model from memory if a judge needs the space.
    """
    if not judges:
        yield
        return
    log = ResponseLog(judgements_file(folder, rerun), HEADER)
    try:
        with judged_by(partial(_verdicts, judges, log, free)):
            yield
    finally:
        log.close()


def judgements_file(folder: Path, rerun: bool) -> Path:
    """The file with the verdicts of a run; an unfinished rerun has its own."""
    return folder / ("judgements.rerun.jsonl" if rerun else JUDGEMENTS)


def _verdicts(
    judges: Sequence[Judge],
    log: ResponseLog,
    free: Callable[[], None],
    exchanges: Sequence[Exchange],
) -> list[dict[str, Verdict]]:
    """For each exchange: the verdict of each judge, by the judge's name.

    The log has every verdict that was given before, by `_key`; the judges give the others. A
    verdict on an answer without text has `empty`, true.

    Args:
        free: removes the evaluated model from memory.
    """
    verdicts_of_exchanges: list[dict[str, Verdict]] = [{} for _ in exchanges]
    for judge in judges:
        keys = [_key(judge, exchange) for exchange in exchanges]
        missing = {}
        for key, exchange in zip(keys, exchanges, strict=True):
            if key not in log:
                missing[key] = exchange
        if missing:
            _judge(judge, missing, log, free)
        for verdicts, key, exchange in zip(verdicts_of_exchanges, keys, exchanges, strict=True):
            verdicts[judge.name] = log[key]
            if not exchange.answer.strip():
                verdicts[judge.name] = log[key] | {"empty": True}
    return verdicts_of_exchanges


def _judge(
    judge: Judge, exchanges: dict[str, Exchange], log: ResponseLog, free: Callable[[], None]
) -> None:
    """Judge exchanges. The log gets each verdict, by the key of its exchange, and the time."""
    start = time.perf_counter()
    memory = _memory_of(judge)
    if memory and memory > free_memory(resolve_device(judge.config.device)):
        free()
    verdicts = judge.judge(list(exchanges.values()))
    with Progress(len(exchanges), f"judge {judge.name}", "answer") as progress:
        for key, verdict in zip(exchanges, verdicts, strict=True):
            log.answer(key, verdict, {})
            progress.update()
    log.spend({judge.name: time.perf_counter() - start})


def _key(judge: Judge, exchange: Exchange) -> str:
    """The key of a verdict in the log: a hash of the judge's identity and the exchange."""
    content = json.dumps([judge.identity, *exchange], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _memory_of(judge: Judge) -> int:
    """The estimated bytes of a judge; 0 without a model."""
    folder = judge.folder()
    if folder is None:
        return 0
    weights = [folder / name for name in known_weights(folder)]
    return ROOM * sum(file.stat().st_size for file in weights)
