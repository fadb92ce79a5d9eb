"""The LMs that lm-eval calls: they divide requests among processes, and replay answers from the log."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property, partial
from ipaddress import ip_address
from itertools import accumulate, count, pairwise
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import LM

from moe_lab.engine.forward.batch import common_length
from moe_lab.errors import ConfigError, ResultsError
from moe_lab.models.distributed import broadcast, num_processes
from moe_lab.models.tokenizer import Framing
from moe_lab.results.logs import ResponseLog, request_key
from moe_lab.runs.distributed import follower_lm
from moe_lab.runs.evaluation.result_block import Meter

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from torch.distributed import TCPStore

    from moe_lab.config.schema import Config
    from moe_lab.engine.lm import EngineLM, OnAnswer, Request


# The requests of one evaluation, divided among the processes of torchrun
#
# Process 0 broadcasts the requests that its log lacks, and every process answers its part with the method opened on
# its own model. The other processes send each answer, with its cost, to a store of process 0. A thread reads the store
# and writes each answer to the log as soon as it arrives.
#
# torch's stores have no authentication: everyone who reaches the port can read and write. So the store listens only on
# the address of the rendezvous, and each message is signed with a secret that process 0 broadcasts with the requests.

PAUSE = 0.05
"""Seconds between two reads of the store."""
SIGNATURE_BYTES = 32
Message = tuple[int | None, Any, dict[str, float]]
"""Index of a request, its answer, and the cost since the message before. None for the last message of a process."""
_calls = count()


class DividedLM:
    """The `EngineLM` of process 0. It divides its requests among all processes."""

    def __init__(self, lm: EngineLM, config: Config):
        self._lm = lm
        self._config = config
        self._elsewhere: Counter[str] = Counter()

    @property
    def cost(self) -> dict[str, float]:
        """`EngineLM.cost` of all processes, and the energy of the others in joules, where devices report it."""
        cost: Counter[str] = Counter(self._lm.cost)
        cost.update(self._elsewhere)
        return dict(cost)

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        """As `EngineLM.answer`."""
        parts = divide(kind, requests, num_processes())
        store, channel = _own_store(), Channel(str(next(_calls)), secrets.token_bytes(32))
        address = (os.environ["MASTER_ADDR"], store.port)
        broadcast(partial(_answer_part, self._config, kind, list(requests), parts, address, channel))
        inbox, stopped, storing = Inbox(store, channel, len(parts)), Event(), Lock()

        def receive() -> None:
            last = False
            while inbox.senders and not last:
                last = stopped.wait(PAUSE)
                for index, answer, cost in inbox.arrived():
                    with storing:
                        self._elsewhere.update(cost)
                        if index is not None:
                            on_answer(index, answer)

        def on_own_answer(place: int, answer: Any) -> None:
            with storing:
                on_answer(parts[0][place], answer)

        with ThreadPoolExecutor(1) as thread:
            receiving = thread.submit(receive)
            try:
                if parts[0]:
                    self._lm.answer(kind, [requests[index] for index in parts[0]], on_own_answer)
                receiving.result()
            finally:
                stopped.set()  # an interruption keeps what has arrived

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lm, name)


@dataclass(frozen=True)
class Channel:
    """Names and signs the messages of one call of `DividedLM.answer`. Process 0 broadcasts it."""

    name: str
    secret: bytes

    def key(self, rank: int, number: int) -> str:
        """The key of a process's message in the store."""
        return f"{self.name}/{rank}/{number}"

    def sealed(self, key: str, message: Any) -> bytes:
        """The signature of a message under its key, and the message."""
        content = json.dumps(message).encode()
        return self._signature(key, content) + content

    def opened(self, key: str, sealed: bytes) -> Any:
        """The message. Raises ResultsError if its signature is not that of this channel."""
        content = sealed[SIGNATURE_BYTES:]
        if not hmac.compare_digest(sealed[:SIGNATURE_BYTES], self._signature(key, content)):
            raise ResultsError(
                "A program that is no process of this run wrote to the port through which its processes exchange "
                "answers.\nIts message was not used. Stop that program; the same command continues."
            )
        return json.loads(content)

    def _signature(self, key: str, content: bytes) -> bytes:
        return hmac.digest(self.secret, key.encode() + b"\0" + content, "sha256")


class Inbox:
    """The messages of the other processes in one call of `DividedLM.answer`."""

    def __init__(self, store: TCPStore, channel: Channel, processes: int):
        self.senders = list(range(1, processes))
        """Processes whose last message has not arrived."""
        self._store, self._channel = store, channel
        self._received: Counter[int] = Counter()

    def arrived(self) -> Iterator[Message]:
        """The messages that have arrived since the last call. Removes them from the store."""
        for rank in list(self.senders):
            while rank in self.senders and self._store.check([key := self._next_key(rank)]):
                index, answer, cost = self._channel.opened(key, self._store.get(key))
                self._store.delete_key(key)
                self._received[rank] += 1
                if index is None:
                    self.senders.remove(rank)
                yield index, tuple(answer) if isinstance(answer, list) else answer, cost

    def _next_key(self, rank: int) -> str:
        return self._channel.key(rank, self._received[rank])


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
        work[place] += sum(len(text) for index in by_context[context] for text in requests[index].args[1:])
    total = sum(work)
    for context, own, end in zip(contexts, work, accumulate(work), strict=True):
        middle = end - own / 2
        parts[int(middle * processes / total)] += by_context[context]
    return parts


@cache
def _own_store() -> TCPStore:
    """The store of this process, on a free port of the rendezvous' address.

    Raises ConfigError if this machine does not have that address.
    """
    from torch.distributed import TCPStore

    host = os.environ["MASTER_ADDR"]
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, 0), family=family)
    except OSError as error:
        raise ConfigError(
            f"MASTER_ADDR={host}: process 0 cannot listen there ({error.strerror or error}).\n"
            "Give torchrun the address of the machine of process 0: --master-addr or --rdzv-endpoint."
        ) from error
    address, port = listener.getsockname()[:2]
    elsewhere = int(os.environ.get("LOCAL_WORLD_SIZE", num_processes())) < num_processes()
    if elsewhere and ip_address(address).is_loopback:
        raise ConfigError(
            f"MASTER_ADDR={host} is {address} on the machine of process 0, which processes of other machines do not "
            "reach.\nGive torchrun the machine's own address: --master-addr or --rdzv-endpoint."
        )
    # by default a store listens on all addresses of the machine
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


@cache
def _store_at(host: str, port: int) -> TCPStore:
    """The store of process 0."""
    from torch.distributed import TCPStore

    return TCPStore(host, port, is_master=False)


def _answer_part(
    config: Config,
    kind: str,
    requests: list[Request],
    parts: list[list[int]],
    address: tuple[str, int],
    channel: Channel,
) -> None:
    """Answer this process's part of the requests, and send the answers to process 0."""
    import torch.distributed as dist

    rank, store, numbers = dist.get_rank(), _store_at(*address), count()
    part = parts[rank]

    def send(*message: Any) -> None:
        key = channel.key(rank, next(numbers))
        store.set(key, channel.sealed(key, message))

    if not part:
        send(None, None, {})
        return
    with follower_lm(config) as lm:
        meter = Meter(lm)

        def cost() -> dict[str, float]:
            counted = {*lm.cost, "energy_joules"}
            return {name: amount for name, amount in meter.spent().items() if name in counted}

        lm.answer(
            kind,
            [requests[index] for index in part],
            lambda place, answer: send(part[place], answer, cost()),
        )
        send(None, None, cost())


# An lm-eval model that answers from the response log, and asks the real model only for missing answers


class RecordedLM(Framing, LM):
    """Answers lm-eval's requests from `log`; `open_model` is called once, when the first answer is missing.

    `load_tokenizer` and `chat_template` as in `Framing`.
    """

    def __init__(
        self,
        log: ResponseLog,
        open_model: Callable[[], EngineLM],
        load_tokenizer: Callable[[], Any],
        chat_template: bool | str | None = False,
    ):
        LM.__init__(self)
        Framing.__init__(self, load_tokenizer, chat_template)
        self.log = log
        self._open_model = open_model

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return self._answer("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return self._answer("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return self._answer("generate_until", requests)

    @cached_property
    def model(self) -> EngineLM:
        return self._open_model()

    def forget_model(self) -> None:
        """Drop the model. The next missing answer opens it again."""
        self.__dict__.pop("model", None)

    def _answer(self, kind: str, instances: list[Instance]) -> list[Any]:
        keys: list[str] = []
        missing: dict[str, tuple[tuple[Any, ...], int]] = {}
        repeats: Counter[int] = Counter()
        for instance in instances:
            # lm-eval lists one Instance `repeats` times; equal prompts of two documents are one request
            repeat = repeats[id(instance)]
            repeats[id(instance)] += 1
            key = request_key(kind, instance.args, repeat)
            keys.append(key)
            if key not in self.log:
                missing[key] = (instance.args, repeat)
        if missing:
            self._ask(kind, missing)
        return [self.log[key] for key in keys]

    def _ask(self, kind: str, missing: dict[str, tuple[tuple[Any, ...], int]]) -> None:
        from moe_lab.engine.lm import Request

        model = self.model
        keys = list(missing)
        meter = Meter(model)
        model.answer(
            kind,
            [Request(*asked) for asked in missing.values()],
            lambda index, response: self.log.answer(keys[index], response, meter.spent()),
        )
        self.log.spend(meter.spent())
