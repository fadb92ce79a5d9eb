"""The requests of an evaluation, divided among processes.

Broken by: a request that nobody or two answer, an answer that gets to another request, choices of one question in two
processes, a part that is much larger than the others, a cost that is counted twice, an interruption that loses what
had arrived, numbers that depend on the number of processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch.distributed as dist

from moe_lab.cli.main import main
from moe_lab.config.schema import Config
from moe_lab.engine.hf import Request
from moe_lab.errors import ConfigError, ResultsError
from moe_lab.methods import get_method
from moe_lab.results.logs import ResponseLog
from moe_lab.runs.evaluation import lms as divided_lm
from moe_lab.runs.evaluation.lms import DividedLM, divide
from tests.support.ranks import fork_ranks

KINDS = ("loglikelihood", "loglikelihood_rolling", "generate_until")


def request(kind: str, context: str, more: Any = None) -> Request:
    return Request((context,) if kind == "loglikelihood_rolling" else (context, more))


def some_requests(kind: str, contexts: int) -> list[Request]:
    """Two requests of each context, far apart."""
    draw = random.Random(contexts)
    texts = ["".join(draw.choices("abc", k=draw.randint(0, 60))) for _ in range(contexts)]
    return [request(kind, text, "yes" if turn else "maybe") for turn in range(2) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("contexts", "processes"), [(50, 2), (50, 7), (3, 4), (1, 2)])
def test_every_request_has_one_process_and_a_context_one_too(kind, contexts, processes):
    requests = some_requests(kind, contexts)
    parts = divide(kind, requests, processes)
    assert len(parts) == processes
    assert sorted(index for part in parts for index in part) == list(range(len(requests)))
    owners: dict[str, set[int]] = {}
    for rank, part in enumerate(parts):
        for index in part:
            owners.setdefault(requests[index].args[0], set()).add(rank)
    assert all(len(ranks) == 1 for ranks in owners.values())


def test_scoring_is_divided_by_what_is_read():
    """Subjects with long examples of their own, of which one would outweigh all questions if each question counted it."""
    texts = [
        f"{subject}{'example ' * examples}{number:02} ?"
        for subject, examples in zip("ABCDEFGH", (50, 0, 3, 20, 8, 0, 15, 5), strict=True)
        for number in range(20)
    ]
    random.Random(0).shuffle(texts)

    def read(indices: Iterable[int]) -> int:
        """Characters of a trie of texts."""
        return len({texts[index][:end] for index in indices for end in range(len(texts[index]) + 1)})

    parts = divide("loglikelihood", [request("loglikelihood", text, " yes") for text in texts], 2)
    assert sum(map(read, parts)) <= read(range(len(texts))) + max(map(len, texts)), (
        "one beginning is read twice"
    )
    shares = [(read(part) + 4 * len(part)) for part in parts]
    assert 0.7 < shares[0] / shares[1] < 1.4, shares


def test_generation_is_dealt_evenly():
    """Short prompts with long answers, and the other way round: every process gets as many of both."""
    prompts = [f"Q{number}" for number in range(30)] + [
        f"Passage {number}{' text' * 80}" for number in range(30)
    ]
    parts = divide("generate_until", [request("generate_until", prompt, {}) for prompt in prompts], 3)
    assert [len(part) for part in parts] == [20, 20, 20]
    assert [sum(index < 30 for index in part) for part in parts] == [10, 10, 10]


class StubLM:
    """Answers in reverse order with what it was asked; a request costs its length and an answer's end 1."""

    device = None

    def __init__(self, fails_at: str | None = None) -> None:
        self.cost: Counter[str] = Counter(tokens_in=0)
        self.fails_at = fails_at

    def answer(self, kind: str, requests: list[Request], on_answer: Callable[[int, Any], None]) -> None:
        for index in reversed(range(len(requests))):
            if requests[index].args[0] == self.fails_at:
                raise KeyboardInterrupt
            self.cost["tokens_in"] += len(requests[index].args[0])
            on_answer(index, (requests[index].args[0], requests[index].repeat))
        self.cost["tokens_in"] += 1


@pytest.fixture
def by_thread(monkeypatch):
    """Another process as a thread that has ended before process 0 begins."""
    other = StubLM()

    @contextmanager
    def follower_lm(config):
        yield other

    def broadcast(call):
        thread = Thread(target=call)
        thread.start()
        thread.join()

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(divided_lm, "follower_lm", follower_lm)
    monkeypatch.setattr(divided_lm, "broadcast", broadcast)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    divided_lm._own_store.cache_clear()
    return other


def base_config() -> Config:
    return Config(method=get_method("base").Config(name="base"))


@pytest.mark.parametrize("texts", [["a", "bb", "ccc", "dddd", "bb"], ["alone"], []])
def test_answers_and_costs_of_all_processes_come_together(texts, by_thread):
    own = StubLM()
    lm = DividedLM(own, base_config())
    for _ in range(2):  # messages of two calls do not meet
        before, found = Counter(lm.cost), {}
        lm.answer("generate_until", [Request((text, {}), 3) for text in texts], found.__setitem__)
        assert found == {index: (text, 3) for index, text in enumerate(texts)}
        ends = min(2, len(set(texts)))
        assert lm.cost["tokens_in"] - before["tokens_in"] == sum(map(len, texts)) + ends
    assert bool(by_thread.cost["tokens_in"]) == (len(texts) > 1), "the other process has its part"


def test_an_interruption_keeps_what_has_arrived(by_thread):
    lm, found = DividedLM(StubLM(fails_at="ccc"), base_config()), {}
    requests = [Request((text, {})) for text in ("a", "bb", "ccc", "dddd")]
    with pytest.raises(KeyboardInterrupt):
        lm.answer("generate_until", requests, found.__setitem__)
    assert found == {1: ("bb", 0), 3: ("dddd", 0)}


def test_answers_of_others_are_stored_while_process_0_is_busy(by_thread):
    found, arrived = {}, Event()

    def on_answer(index: int, answer: Any) -> None:
        found[index] = answer
        arrived.set()

    class Busy(StubLM):
        def answer(self, *parts: Any) -> None:
            assert arrived.wait(10)

    DividedLM(Busy(), base_config()).answer("generate_until", [Request(("a",)), Request(("b",))], on_answer)
    assert found == {1: ("b", 0)}


def test_an_answer_that_cannot_be_stored_ends_the_evaluation(by_thread):
    def on_answer(index: int, answer: Any) -> None:
        if index == 1:
            raise ResultsError("no space left")

    with pytest.raises(ResultsError):
        DividedLM(StubLM(), base_config()).answer(
            "generate_until", [Request(("a",)), Request(("b",))], on_answer
        )


def test_the_store_listens_on_the_address_of_the_rendezvous_alone(by_thread):
    port = divided_lm._own_store().port
    with closing(socket.create_connection(("127.0.0.1", port), timeout=5)):
        pass
    with pytest.raises(ConnectionRefusedError):  # another address of the same machine
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_an_address_of_another_machine_is_refused(by_thread, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")  # reserved for documentation
    with pytest.raises(ConfigError, match=r"MASTER_ADDR=192\.0\.2\.1"):
        divided_lm._own_store()


@pytest.mark.parametrize(
    "forged", [b"", b"x" * 200, bytes(32) + b'[1, "forged", {}]'], ids=["empty", "noise", "unsigned"]
)
def test_an_answer_of_another_program_is_refused(forged, by_thread, monkeypatch):
    """The other program reads the names of the messages in the store, and overwrites the answer to request 1."""

    def overwrite(store, keys):
        for key in store.list_keys():
            if key.endswith("/1/0"):
                store.set(key, forged)
        return check(store, keys)

    check = dist.TCPStore.check
    monkeypatch.setattr(dist.TCPStore, "check", overwrite)
    found: dict[int, Any] = {}
    with pytest.raises(ResultsError, match="no process of this run"):
        DividedLM(StubLM(), base_config()).answer(
            "generate_until", [Request(("a",)), Request(("b",))], found.__setitem__
        )
    assert 1 not in found


def test_a_signature_holds_for_its_own_key_alone():
    channel = divided_lm.Channel("0", bytes(32))
    sealed = channel.sealed("0/1/0", [1, "answer", {}])
    assert channel.opened("0/1/0", sealed) == [1, "answer", {}]
    for key, other in (("0/1/1", channel), ("0/1/0", divided_lm.Channel("0", b"1" * 32))):
        with pytest.raises(ResultsError):
            other.opened(key, sealed)


COMMAND = ["-m", "method=roe", "method.n=4", "task=toy_math,toy_choice", "limit=4", "device=cpu"]


def results_in(output: Path) -> dict[str, dict]:
    return {file.parent.name: json.loads(file.read_text()) for file in output.glob("runs/*/results.json")}


def answers_in(log: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {line["key"]: line["response"] for line in lines if "key" in line}


def assert_equal_runs(output: Path, expected: Path) -> None:
    """The same answers, log-likelihoods to 1e-4, and the same scores and counts."""
    found, wanted = results_in(output), results_in(expected)
    assert found.keys() == wanted.keys() and len(found) == 4
    for name, results in found.items():
        assert results["results"] == wanted[name]["results"]
        one, other = results["moe_lab"], wanted[name]["moe_lab"]
        for count in ("tokens_in", "tokens_out"):
            assert one["cost"][count] == other["cost"][count], (name, count)
        assert one.get("roe") == other.get("roe")
        answers = [answers_in(folder / "runs" / name / "responses.jsonl") for folder in (output, expected)]
        assert answers[0].keys() == answers[1].keys()
        for key, answer in answers[0].items():
            if isinstance(answer, str):
                assert answer == answers[1][key]
            else:
                assert answer[0] == pytest.approx(answers[1][key][0], abs=1e-4)
                assert answer[1] == answers[1][key][1]


def killed_after_three_answers(arguments: list[str]) -> int:
    """The command, of which process 0 is killed when it has stored three answers of RoE."""
    store = ResponseLog.answer

    def answer(log: ResponseLog, *parts: Any) -> None:
        store(log, *parts)
        if "-roe-" in log.path.parent.name and len(log) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    ResponseLog.answer = answer  # type: ignore[method-assign]
    return main(arguments)


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(tmp_path):
    one, two, killed = (tmp_path / name for name in ("one", "two", "killed"))
    log = tmp_path / "ranks.log"
    assert main([*COMMAND, f"output_dir={one}"]) == 0
    assert fork_ranks(main, [*COMMAND, f"output_dir={two}"], log=log) == [0, 0], log.read_text()
    assert_equal_runs(two, one)
    asked = {name: results["moe_lab"]["cost"]["tokens_in"] for name, results in results_in(one).items()}

    codes = fork_ranks(killed_after_three_answers, [*COMMAND, f"output_dir={killed}"], log=log)
    assert codes[0] == -signal.SIGKILL and codes[1] != 0
    (left,) = (file for file in killed.glob("runs/*-roe-*/responses.jsonl") if answers_in(file))
    kept = answers_in(left)
    assert len(kept) == 3
    assert main([*COMMAND, f"output_dir={killed}"]) == 0, "one process continues what two have begun"
    assert kept.items() <= answers_in(left).items()
    lines = [json.loads(line) for line in left.read_text().splitlines()]
    assert len([line for line in lines if "key" in line]) == len(answers_in(left)), "no answer is asked twice"
    assert results_in(killed).keys() == asked.keys()
