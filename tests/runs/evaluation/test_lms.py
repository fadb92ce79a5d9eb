"""The LMs that lm-eval calls: stored answers, and answers of several processes.

Broken by: an answer that is asked twice or given to another question, a chat prompt that needs
weights, a cost that is counted twice, a kill that loses what was answered.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from lm_eval.api.instance import Instance

from moe_lab.config.schema import Config
from moe_lab.engine.hf import Request
from moe_lab.methods import get_method
from moe_lab.results.response_log import ResponseLog, answers_in
from moe_lab.runs.evaluation import shared_lm
from moe_lab.runs.evaluation.lms import RecordedLM
from moe_lab.runs.evaluation.shared_lm import SharedLM


class StubLM:
    """Answers its requests in reverse order; a request costs its length,
    and the end of an answer 1."""

    device = None

    def __init__(self, fails_at: str | None = None) -> None:
        self.cost: Counter[str] = Counter(tokens_in=0)
        self.asked: list[tuple[str, int]] = []
        self.fails_at = fails_at

    def answer(
        self, kind: str, requests: list[Request], on_answer: Callable[[int, Any], None]
    ) -> None:
        for index in reversed(range(len(requests))):
            text = requests[index].args[0]
            repeat = requests[index].repeat
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
        if shared:
            return SharedLM(lm, config, log)
        return lm

    return RecordedLM(log, open_model, lambda: pytest.fail("a tokenizer was loaded"))


def instance(kind: str, *arguments: Any) -> Instance:
    return Instance(kind, {}, arguments, idx=0, task_name="", doc_id=0)


def ask(lm: RecordedLM, *texts: str, repeats: int = 1) -> list[Any]:
    """lm-eval lists an Instance per repeat; two documents with one prompt are two Instances."""
    instances: list[Instance] = []
    for text in texts:
        instances += [instance("generate_until", text, {})] * repeats
    return lm.generate_until(instances)


def answers_to(*texts: str, repeats: int = 1) -> list[str]:
    answers = []
    for text in texts:
        for repeat in range(repeats):
            answers.append(f"generate_until {text} {repeat}")
    return answers


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# One process: answers that are stored are not asked again


def test_only_missing_answers_are_asked(tmp_path):
    model = StubLM()
    assert ask(recorded(tmp_path, model), "a", "b") == answers_to("a", "b")
    assert ask(recorded(tmp_path, model), "c", "b", "a") == answers_to("c", "b", "a")
    assert model.asked == [("b", 0), ("a", 0), ("c", 0)]
    assert ask(recorded(tmp_path, None), "c", "a") == answers_to("c", "a")


def test_only_missing_answers_are_asked_after_an_interruption(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        ask(recorded(tmp_path, StubLM(fails_at="x")), "x", "y")
    model = StubLM()
    assert ask(recorded(tmp_path, model), "x", "y") == answers_to("x", "y")
    assert model.asked == [("x", 0)]


def test_repeats_are_numbered_and_equal_prompts_shared(tmp_path):
    model = StubLM()
    assert ask(recorded(tmp_path, model), "a", "a", repeats=2) == answers_to("a", "a", repeats=2)
    assert sorted(model.asked) == [("a", 0), ("a", 1)]


def test_an_answer_belongs_to_its_kind_of_request(tmp_path):
    lm = recorded(tmp_path, StubLM())
    requests = [instance("loglikelihood", "a", "b")]
    assert lm.loglikelihood(requests) != lm.generate_until(requests)


def test_cost_is_the_whole_runs(tmp_path):
    ask(recorded(tmp_path, StubLM()), "aaaaa", "bbbbb")
    lm = recorded(tmp_path, StubLM())
    ask(lm, "aaaaa", "ccccc")
    three_answers = 3 * 5
    two_sessions = 2
    assert lm.log.cost["tokens_in"] == three_answers + two_sessions
    assert lm.log.cost["wall_seconds"] > 0
    assert lm.log.cost["peak_memory_bytes"] > 2**20


CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and strict %}{{ raise_exception('no') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_chat_prompts_are_lm_evals_own_without_weights(tmp_path, olmoe, tokenizer):
    from lm_eval.models.huggingface import HFLM

    chatty = deepcopy(tokenizer)
    chatty.chat_template = CHAT_TEMPLATE
    hf = HFLM(pretrained=olmoe, tokenizer=chatty)
    log = ResponseLog(tmp_path / "log", HEADER)
    lm = RecordedLM(log, lambda: pytest.fail("opened"), lambda: chatty, True)
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    prefilled = [*history, {"role": "assistant", "content": "It is"}]

    prompt = lm.apply_chat_template(history)
    assert prompt == "[system]Be brief.[user]1+1?[assistant]"
    assert prompt == hf.apply_chat_template(history)
    assert lm.apply_chat_template(prefilled, False) == hf.apply_chat_template(prefilled, False)
    assert lm.tokenizer_name == hf.tokenizer_name


# Several processes


@pytest.fixture
def other_lm(monkeypatch) -> StubLM:
    """The LM of another process, which answers its part before process 0 begins."""
    lm = StubLM()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(shared_lm, "follower_lm", lambda config: nullcontext(lm))
    monkeypatch.setattr(shared_lm, "broadcast", lambda call: call())
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    return lm


@pytest.mark.parametrize(
    ("texts", "sessions"),
    [
        pytest.param(["a", "bb", "ccc", "dddd", "bb"], 2, id="both processes have a part"),
        pytest.param(["alone"], 1, id="one process has nothing to do"),
        pytest.param([], 0, id="nothing"),
    ],
)
def test_answers_and_costs_of_all_processes_come_together(texts, sessions, other_lm, tmp_path):
    lm = recorded(tmp_path, StubLM(), shared=True)

    answers = ask(lm, *texts, repeats=2)

    assert answers == answers_to(*texts, repeats=2)
    length = sum(len(text) for text in set(texts))
    assert lm.log.cost.get("tokens_in", 0) == 2 * length + sessions
    has_part = other_lm.cost["tokens_in"] > 0
    assert has_part == (sessions == 2)

    *_, answer = ask(lm, *texts, "another")
    assert [answer] == answers_to("another"), "a second call of the same run"
    assert file_names(tmp_path) == ["responses.jsonl"]


def test_a_kill_keeps_what_all_processes_have_answered(other_lm, tmp_path):
    """Any number of processes goes on: one reads the logs of all others."""
    lm = recorded(tmp_path, StubLM(fails_at="ccc"), shared=True)
    with pytest.raises(KeyboardInterrupt):
        ask(lm, "a", "bb", "ccc", "dddd", repeats=2)
    lm.log.close()
    assert len(lm.log) == 0
    assert answers_in(tmp_path / "responses.jsonl", HEADER) == 4

    of_another_run = ResponseLog(tmp_path / "responses.3.jsonl", {"run_id": "another"})
    of_another_run.answer("x", "y", {})
    of_another_run.close()
    tokens = other_lm.cost["tokens_in"]

    log = ResponseLog(tmp_path / "responses.jsonl", HEADER)
    assert len(log) == 4
    assert log.cost["tokens_in"] == tokens
    log.close()
    assert answers_in(log.path, HEADER) == 4, "stored once"
    assert file_names(tmp_path) == ["responses.3.jsonl", "responses.jsonl"]
