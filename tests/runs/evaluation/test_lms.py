"""The LMs that lm-eval calls: replayed answers, and the requests of an evaluation divided among processes, as torchrun starts
them. (Its own processes, which import everything anew, are in tests/methods/finetune_freeze/test_processes.py.)

Broken by: an answer that is asked twice or given to another question, a chat prompt that needs weights, a request that nobody
or two answer, choices of one question in two processes, a part that is much larger than the others, a cost that is counted
twice, a kill that loses what was answered, numbers that depend on the number of processes, two processes that write, a
follower that waits for ever.
"""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from lm_eval.api.instance import Instance

from moe_lab.cli.main import main
from moe_lab.config.schema import Config, ModelConfig, TuningConfig
from moe_lab.engine.hf import Request
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.results.response_log import ResponseLog, answers_in
from moe_lab.runs.distributed import follow
from moe_lab.runs.evaluation import shared_lm
from moe_lab.runs.evaluation.lms import RecordedLM
from moe_lab.runs.evaluation.shared_lm import SharedLM, divide
from moe_lab.runs.grid import do
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
    lengths = dict(zip("ABCDEFGH", (50, 0, 3, 20, 8, 0, 15, 5), strict=True))
    texts = [
        f"{one}{'example ' * n}{number:02} ?" for one, n in lengths.items() for number in range(20)
    ]
    random.Random(0).shuffle(texts)

    def read(indices: Iterable[int]) -> int:
        """Characters of a trie of texts."""
        return len(
            {texts[index][:end] for index in indices for end in range(len(texts[index]) + 1)}
        )

    parts = divide("loglikelihood", [request("loglikelihood", text, " yes") for text in texts], 2)
    assert sum(map(read, parts)) <= read(range(len(texts))) + max(map(len, texts)), (
        "one text is shared"
    )
    shares = [(read(part) + 4 * len(part)) for part in parts]
    assert 0.7 < shares[0] / shares[1] < 1.4, shares


def test_generation_is_dealt_evenly():
    """Short prompts with long answers, and the other way round: every process gets as many of both."""
    prompts = [f"Q{number}" for number in range(30)]
    prompts += [f"Passage {number}{' text' * 80}" for number in range(30)]
    parts = divide(
        "generate_until", [request("generate_until", prompt, {}) for prompt in prompts], 3
    )
    assert [len(part) for part in parts] == [20, 20, 20]
    assert [sum(index < 30 for index in part) for part in parts] == [10, 10, 10]


class StubLM:
    """Answers in reverse order with what it was asked; a request costs its length and an answer's end 1."""

    device = None

    def __init__(self, fails_at: str | None = None) -> None:
        self.cost: Counter[str] = Counter(tokens_in=0)
        self.asked: list[tuple[str, int]] = []
        self.fails_at = fails_at

    def answer(
        self, kind: str, requests: list[Request], on_answer: Callable[[int, Any], None]
    ) -> None:
        for index, ((text, *_), repeat) in reversed(list(enumerate(requests))):
            if text == self.fails_at:
                raise KeyboardInterrupt
            self.asked.append((text, repeat))
            self.cost["tokens_in"] += len(text)
            on_answer(index, f"{kind} {text} {repeat}")
        self.cost["tokens_in"] += 1  # a cost that belongs to no answer


HEADER = {"run_id": "a"}


def recorded(folder: Path, lm: StubLM | None, shared: bool = False) -> RecordedLM:
    """What lm-eval calls in process 0; without an `lm` nothing may be asked."""
    config = Config(method=get_method("base").Config(name="base"))
    log = ResponseLog(folder / "responses.jsonl", HEADER)

    def open_model() -> Any:
        assert lm is not None, "the model was opened"
        return SharedLM(lm, config, log) if shared else lm

    return RecordedLM(log, open_model, lambda: pytest.fail("a tokenizer was loaded"))


def ask(lm: RecordedLM, *texts: str, repeats: int = 1) -> list[Any]:
    """lm-eval lists an Instance once per repeat; two documents with one prompt are two Instances."""
    made = [
        Instance("generate_until", {}, (text, {}), idx=0, task_name="", doc_id=0) for text in texts
    ]
    return lm.generate_until([instance for instance in made for _ in range(repeats)])


def answers_to(*texts: str, repeats: int = 1) -> list[str]:
    return [f"generate_until {text} {repeat}" for text in texts for repeat in range(repeats)]


# One process: answers that are stored are not asked again


def test_only_missing_answers_are_asked_after_an_interruption_too(tmp_path):
    model = StubLM()
    assert ask(recorded(tmp_path, model), "a", "b") == answers_to("a", "b")
    assert ask(recorded(tmp_path, model), "c", "b", "a") == answers_to("c", "b", "a")
    assert model.asked == [("b", 0), ("a", 0), ("c", 0)]
    assert ask(recorded(tmp_path, None), "c", "a") == answers_to("c", "a")
    with pytest.raises(KeyboardInterrupt):
        ask(recorded(tmp_path, StubLM(fails_at="x")), "x", "y")
    model = StubLM()
    assert ask(recorded(tmp_path, model), "x", "y") == answers_to("x", "y") and model.asked == [
        ("x", 0)
    ]


def test_repeats_are_numbered_and_equal_prompts_shared(tmp_path):
    model = StubLM()
    assert ask(recorded(tmp_path, model), "a", "a", repeats=2) == answers_to("a", "a", repeats=2)
    assert sorted(model.asked) == [("a", 0), ("a", 1)]
    lm, asked = (
        recorded(tmp_path, StubLM()),
        [Instance("loglikelihood", {}, ("a", "b"), idx=0, task_name="", doc_id=0)],
    )
    assert lm.loglikelihood(asked) != lm.generate_until(asked)


def test_cost_is_the_whole_runs(tmp_path):
    ask(recorded(tmp_path, StubLM()), "aaaaa", "bbbbb")
    lm = recorded(tmp_path, StubLM())
    ask(lm, "aaaaa", "ccccc")
    assert lm.log.cost["tokens_in"] == 17, (
        "two answers and one, five each, and one more per session"
    )
    assert lm.log.cost["wall_seconds"] > 0 and lm.log.cost["peak_memory_bytes"] > 2**20


def test_chat_prompts_are_lm_evals_own_without_weights(tmp_path, olmoe, tokenizer):
    from lm_eval.models.huggingface import HFLM

    chatty = deepcopy(tokenizer)
    chatty.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' and strict %}{{ raise_exception('no') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    hf = HFLM(pretrained=olmoe, tokenizer=chatty)
    log = ResponseLog(tmp_path / "log", HEADER)
    lm = RecordedLM(log, lambda: pytest.fail("opened"), lambda: chatty, True)
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    prefilled = [*history, {"role": "assistant", "content": "It is"}]
    prompt = "[system]Be brief.[user]1+1?[assistant]"
    assert lm.apply_chat_template(history) == hf.apply_chat_template(history) == prompt
    assert lm.apply_chat_template(prefilled, False) == hf.apply_chat_template(prefilled, False)
    assert lm.tokenizer_name == hf.tokenizer_name


# Several processes


@pytest.fixture
def other(monkeypatch) -> StubLM:
    """The LM of another process, which answers its part before process 0 begins."""
    lm = StubLM()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(shared_lm, "follower_lm", lambda config: nullcontext(lm))
    monkeypatch.setattr(shared_lm, "broadcast", lambda call: call())
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    return lm


@pytest.mark.parametrize("texts", [["a", "bb", "ccc", "dddd", "bb"], ["alone"], []])
def test_answers_and_costs_of_all_processes_come_together(texts, other, tmp_path):
    lm = recorded(tmp_path, StubLM(), shared=True)
    assert ask(lm, *texts, repeats=2) == answers_to(*texts, repeats=2)
    ends = min(2, len(set(texts)))
    assert lm.log.cost.get("tokens_in", 0) == 2 * sum(map(len, set(texts))) + ends
    assert bool(other.cost["tokens_in"]) == (len(texts) > 1), "the other process has its part"
    assert ask(lm, *texts, "another")[-1:] == answers_to("another"), "a second call of the same run"
    assert [path.name for path in tmp_path.iterdir()] == ["responses.jsonl"]


def test_a_kill_keeps_what_all_processes_have_answered(other, tmp_path):
    """Any number of processes goes on: one reads the logs of all others."""
    lm = recorded(tmp_path, StubLM(fails_at="ccc"), shared=True)
    with pytest.raises(KeyboardInterrupt):
        ask(lm, "a", "bb", "ccc", "dddd", repeats=2)
    lm.log.close()
    assert len(lm.log) == 0 and answers_in(tmp_path / "responses.jsonl", HEADER) == 4
    tokens = other.cost["tokens_in"]
    foreign = ResponseLog(tmp_path / "responses.3.jsonl", {"run_id": "another"})
    foreign.answer("x", "y", {})
    foreign.close()
    log = ResponseLog(tmp_path / "responses.jsonl", HEADER)
    assert len(log) == 4 and log.cost["tokens_in"] == tokens
    log.close()
    assert answers_in(log.path, HEADER) == 4, "stored once"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "responses.3.jsonl",
        "responses.jsonl",
    ]


COMMAND = ["-m", "method=roe", "method.n=4", "task=toy_math,toy_choice", "limit=4", "device=cpu"]


def results_in(output: Path) -> dict[str, dict]:
    return {
        file.parent.name: json.loads(file.read_text())
        for file in output.glob("runs/*/results.json")
    }


def answers_of(log: Path) -> dict[str, Any]:
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
        answers = [
            answers_of(folder / "runs" / name / "responses.jsonl") for folder in (output, expected)
        ]
        assert answers[0].keys() == answers[1].keys()
        for key, answer in answers[0].items():
            if isinstance(answer, str):
                assert answer == answers[1][key]
            else:
                assert answer[0] == pytest.approx(answers[1][key][0], abs=1e-4)
                assert answer[1] == answers[1][key][1]


def killed_after_three_answers(arguments: list[str]) -> int:
    """The command, of which process 0 is killed when it has stored three answers of RoE, and the others all of theirs."""
    store, rank = ResponseLog.answer, os.environ["RANK"]

    def answer(log: ResponseLog, *parts: Any) -> None:
        store(log, *parts)
        if "-roe-" in log.path.parent.name and len(log) == 3 and rank == "0":
            while not list(log.path.parent.glob("responses.1.jsonl")):
                time.sleep(0.05)
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
    assert log.read_text().count("report.html") == 1, "one process reports"
    assert fork_ranks(main, [*COMMAND, f"output_dir={two}"], log=log) == [0, 0], (
        "stored results are shown"
    )
    asked = {
        name: results["moe_lab"]["cost"]["tokens_in"] for name, results in results_in(one).items()
    }

    codes = fork_ranks(killed_after_three_answers, [*COMMAND, f"output_dir={killed}"], log=log)
    assert codes[0] == -signal.SIGKILL and codes[1] != 0
    logs = killed.glob("runs/*-roe-*/responses.jsonl")
    (left,) = (file for file in logs if not file.with_name("results.json").exists())
    kept = answers_of(left) | answers_of(left.with_name("responses.1.jsonl"))
    assert len(answers_of(left)) == 3
    assert main([*COMMAND, f"output_dir={killed}"]) == 0, (
        "one process continues what two have begun"
    )
    assert (
        kept.items() <= answers_of(left).items()
        and not left.with_name("responses.1.jsonl").exists()
    )
    lines = [json.loads(line) for line in left.read_text().splitlines()]
    assert len([line for line in lines if "key" in line]) == len(answers_of(left)), (
        "no answer is asked twice"
    )
    assert results_in(killed).keys() == asked.keys()


# The command in several processes


def config(method="roe", **keys):
    return Config(method=get_method(method).Config(name=method), **keys)


def test_one_process_does_as_ever_and_several_make_no_model(monkeypatch):
    assert follow([config()]) is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="without torchrun"):
        do("run", [config("pretrain-tiny")], [], [])


@pytest.mark.parametrize(
    ("processes", "configs", "says"),
    [
        ("2", [config(), config(tuning=TuningConfig(name="tpe"))], "no study"),
        ("2", [config("base", metrics="expert")], "metrics=expert takes one process"),
        ("2", [config(device="cuda:1")], "one GPU"),
        ("2", [config(model=ModelConfig(path="some/model", device_map="auto"))], "one GPU"),
    ],
)
def test_what_processes_cannot_share_is_refused(processes, configs, says, monkeypatch):
    launch = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (launch | {"WORLD_SIZE": processes}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=says):
        follow(configs)
