"""The LMs that lm-eval calls: they divide requests among processes, and replay answers from the log."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from moe_lab.config.schema import Config
from moe_lab.engine.forward.batch import common_length
from moe_lab.engine.lm import EngineLM, OnAnswer, Request
from moe_lab.models.distributed import broadcast, num_processes
from moe_lab.models.lm_eval_internals import answers_for_lm_eval, request_arguments
from moe_lab.models.tokenizer import Framing
from moe_lab.results.response_log import Header, ResponseLog, request_key
from moe_lab.runs.distributed import follower_lm
from moe_lab.runs.evaluation.cost import CostMeter

# The requests of one evaluation, divided among the processes of torchrun
#
# Process 0 broadcasts the requests that its log lacks. Every process answers a part of them with the method opened on
# its own model, and appends each answer to a log of its own. They meet when all are done, and process 0 reads the logs
# of the others. After a kill the same command reads them first, in any number of processes.


class SharedLM:
    """The `EngineLM` of process 0. Each process answers a part of its requests."""

    def __init__(self, lm: EngineLM, config: Config, log: ResponseLog):
        self._lm, self._config, self._log = lm, config, log

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        """As `EngineLM.answer`. `on_answer` gets the answers of this process; the others' are in the log at the end."""
        parts, log = divide(kind, requests, num_processes()), self._log
        broadcast(
            partial(_answer_part, self._config, kind, list(requests), parts, log.path, log.header)
        )
        own = [requests[index] for index in parts[0]]
        self._lm.answer(kind, own, lambda place, answer: on_answer(parts[0][place], answer))
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
    own = [requests[index] for index in parts[rank]]
    with follower_lm(config) as lm:
        if own:
            log, meter = ResponseLog(path.with_stem(f"{path.stem}.{rank}"), header), CostMeter(lm)

            def cost() -> dict[str, float]:
                counted = {*lm.cost, "energy_joules"}  # time and memory are those of process 0
                return {name: amount for name, amount in meter.spent().items() if name in counted}

            def store(place: int, answer: Any) -> None:
                log.answer(request_key(kind, own[place].args, own[place].repeat), answer, cost())

            lm.answer(kind, own, store)
            log.spend(cost())
            log.close()
    dist.barrier()


def divide(kind: str, requests: Sequence[Request], processes: int) -> list[list[int]]:
    """The indices of the requests of each process. Requests with the same context have the same process.

    The cost of scoring is the text that is read, and a common beginning of prompts is read once. So contexts in
    alphabetical order are cut into parts with about equally many new characters. The cost of generation is mostly its
    unknown number of steps. So prompts in the order of their lengths are dealt in turn.
    """
    by_context: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        by_context.setdefault(request.args[0], []).append(index)
    parts: list[list[int]] = [[] for _ in range(processes)]
    if kind == "generate_until":
        for turn, context in enumerate(sorted(by_context, key=lambda text: (len(text), text))):
            parts[turn % processes] += by_context[context]
        return parts
    contexts = sorted(by_context)
    texts = [context.encode() for context in contexts]
    work = [1 + len(own) - common_length(before, own) for before, own in pairwise([b"", *texts])]
    for place, context in enumerate(contexts):
        work[place] += sum(
            len(text) for index in by_context[context] for text in requests[index].args[1:]
        )
    total = sum(work)
    for context, own, end in zip(contexts, work, accumulate(work), strict=True):
        middle = end - own / 2
        parts[int(middle * processes / total)] += by_context[context]
    return parts


# An lm-eval model that answers from the response log, and asks the real model only for missing answers


class AnsweringLM(Framing, LM):
    """An LM of lm-eval that answers requests of each kind by `_answer`. Arguments as of `Framing`."""

    def __init__(self, load_tokenizer: Callable[[], Any], chat_template: bool | str | None = False):
        LM.__init__(self)
        Framing.__init__(self, load_tokenizer, chat_template)

    @abstractmethod
    def _answer(self, kind: str, requests: list[Instance]) -> list[Any]:
        """The answers to requests of a kind, named as lm-eval names it, in the form that lm-eval expects."""

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return self._answer("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[Any]:
        return self._answer("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return self._answer("generate_until", requests)


class RecordedLM(AnsweringLM):
    """Answers lm-eval's requests from `log`; `open_model` is called once, when the first answer is missing."""

    def __init__(
        self,
        log: ResponseLog,
        open_model: Callable[[], EngineLM],
        load_tokenizer: Callable[[], Any],
        chat_template: bool | str | None = False,
    ):
        super().__init__(load_tokenizer, chat_template)
        self.log = log
        self._open_model = open_model

    @cached_property
    def model(self) -> EngineLM:
        return self._open_model()

    def forget_model(self) -> None:
        """Drop the model. The next missing answer opens it again."""
        self.__dict__.pop("model", None)

    def _answer(self, kind: str, requests: list[Instance]) -> list[Any]:
        keys: list[str] = []
        missing: dict[str, tuple[tuple[Any, ...], int]] = {}
        repeats: Counter[int] = Counter()
        for instance in requests:
            # lm-eval lists one Instance `repeats` times; equal prompts of two documents are one request
            repeat = repeats[id(instance)]
            repeats[id(instance)] += 1
            arguments = request_arguments(instance)
            key = request_key(kind, arguments, repeat)
            keys.append(key)
            if key not in self.log:
                missing[key] = (arguments, repeat)
        if missing:
            self._ask(kind, missing)
        return answers_for_lm_eval(kind, [self.log[key] for key in keys])

    def _ask(self, kind: str, missing: dict[str, tuple[tuple[Any, ...], int]]) -> None:
        model = self.model
        keys = list(missing)
        meter = CostMeter(model)
        model.answer(
            kind,
            [Request(*asked) for asked in missing.values()],
            lambda index, response: self.log.answer(keys[index], response, meter.spent()),
        )
        self.log.spend(meter.spent())
