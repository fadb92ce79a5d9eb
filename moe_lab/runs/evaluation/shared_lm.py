"""The requests of one evaluation, divided among the processes of torchrun.

Process 0 broadcasts the requests that its log lacks. Every process answers a part of them with the
method opened on its own model, and appends each answer to a log of its own. They meet when all are
done, and process 0 reads the logs of the others. After a kill the same command reads them first, in
any number of processes.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch.distributed as dist

from moe_lab.config.schema import Config
from moe_lab.engine.forward.batch import common_length
from moe_lab.engine.lm import EngineLM, OnAnswer, Request
from moe_lab.models.distributed import broadcast, num_processes
from moe_lab.results.response_log import Header, ResponseLog, request_key
from moe_lab.runs.distributed import follower_lm
from moe_lab.runs.evaluation.cost import CostMeter


class SharedLM:
    """The `EngineLM` of process 0. Each process answers a part of its requests."""

    def __init__(self, lm: EngineLM, config: Config, log: ResponseLog):
        self._lm = lm
        self._config = config
        self._log = log

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        """As `EngineLM.answer`.

        `on_answer` gets the answers of this process. Those of the others are in the log at the end.
        """
        parts = divide(kind, requests, num_processes())
        log = self._log
        broadcast(
            partial(_answer_part, self._config, kind, list(requests), parts, log.path, log.header)
        )
        indices = parts[0]
        part = [requests[index] for index in indices]
        self._lm.answer(kind, part, lambda place, answer: on_answer(indices[place], answer))
        dist.barrier()
        log.absorb()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lm, name)


def _answer_part(
    config: Config,
    kind: str,
    requests: list[Request],
    parts: list[list[int]],
    path: Path,
    header: Header,
) -> None:
    """Answer this process's part of the requests, into the log of this process."""
    rank = dist.get_rank()
    part = [requests[index] for index in parts[rank]]
    with follower_lm(config) as lm:
        if part:
            log = ResponseLog(path.with_stem(f"{path.stem}.{rank}"), header)
            _answer_into(log, lm, kind, part)
            log.close()
    dist.barrier()


def _answer_into(log: ResponseLog, lm: EngineLM, kind: str, requests: Sequence[Request]) -> None:
    """Answer the requests into a log, with the cost of each."""
    meter = CostMeter(lm)

    def cost() -> dict[str, float]:
        """What this process adds to the cost of the run."""
        counted = {*lm.cost, "energy_joules"}  # time and memory are those of process 0
        return {name: amount for name, amount in meter.spent().items() if name in counted}

    def store(index: int, answer: Any) -> None:
        request = requests[index]
        log.answer(request_key(kind, request.args, request.repeat), answer, cost())

    lm.answer(kind, requests, store)
    log.spend(cost())


def divide(kind: str, requests: Sequence[Request], processes: int) -> list[list[int]]:
    """The indices of the requests of each process.

    Requests with the same context have the same process.
    """
    by_context: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        by_context.setdefault(request.args[0], []).append(index)
    if kind == "generate_until":
        return _dealt(by_context, processes)
    return _cut(by_context, requests, processes)


def _dealt(by_context: dict[str, list[int]], processes: int) -> list[list[int]]:
    """The indices of each process, of requests of generation: prompts in the order of their lengths
    are dealt in turn. The cost is mostly the number of steps, which is unknown.

    Args:
        by_context: the indices of the requests with each context.
    """
    parts: list[list[int]] = [[] for _ in range(processes)]
    contexts = sorted(by_context, key=lambda text: (len(text), text))
    for turn, context in enumerate(contexts):
        parts[turn % processes] += by_context[context]
    return parts


def _cut(
    by_context: dict[str, list[int]], requests: Sequence[Request], processes: int
) -> list[list[int]]:
    """The indices of each process, of requests of scoring: contexts in alphabetical order are cut
    into parts of equal work.

    The cost is the text that is read, and a common beginning of prompts is read once. So the work
    of a context is its number of new bytes, and the characters of its continuations.
    """
    contexts = sorted(by_context)
    texts = [context.encode() for context in contexts]
    work = []
    for before, text in pairwise([b"", *texts]):
        work.append(1 + len(text) - common_length(before, text))
    for place, context in enumerate(contexts):
        for index in by_context[context]:
            work[place] += sum(len(text) for text in requests[index].args[1:])
    total = sum(work)
    parts: list[list[int]] = [[] for _ in range(processes)]
    for context, context_work, end in zip(contexts, work, accumulate(work), strict=True):
        middle = end - context_work / 2
        parts[int(middle * processes / total)] += by_context[context]
    return parts
