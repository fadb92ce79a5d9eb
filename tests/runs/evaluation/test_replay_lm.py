"""Breaks if an answer is asked twice, given to another question, or a chat prompt needs weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from moe_lab.results.logs import ResponseLog
from moe_lab.runs.evaluation.lms import RecordedLM

HEADER = {"run_id": "a"}


class StubLM:
    """Answers with what it was asked, in reverse order, and counts."""

    device = None

    def __init__(self) -> None:
        self.cost: Counter[str] = Counter(tokens_in=0)
        self.asked: list[Any] = []

    def answer(self, kind: str, requests: list[Any], on_answer: Any) -> None:
        for index in reversed(range(len(requests))):
            args, repeat = requests[index]
            self.asked.append((kind, args, repeat))
            self.cost["tokens_in"] += 5
            on_answer(index, f"{kind} {args} {repeat}")
        self.cost["tokens_in"] += 1  # a cost that belongs to no answer


def instance(*args: Any, repeats: int = 1) -> Instance:
    return Instance("generate_until", doc={}, arguments=args, idx=0, metadata=("t", 0, repeats))


def recorded(path: Path, model: StubLM | None) -> RecordedLM:
    def open_model() -> Any:
        assert model is not None, "the model was opened"
        return model

    return RecordedLM(ResponseLog(path, HEADER), open_model, lambda: pytest.fail("the tokenizer was loaded"))


def test_only_missing_answers_are_asked(tmp_path: Path) -> None:
    path, model = tmp_path / "log", StubLM()
    first = recorded(path, model).generate_until([instance("a", {}), instance("b", {})])
    assert first == ["generate_until ('a', {}) 0", "generate_until ('b', {}) 0"]
    again = recorded(path, model).generate_until([instance("c", {}), instance("b", {}), instance("a", {})])
    assert again == ["generate_until ('c', {}) 0", first[1], first[0]]
    assert [args[0] for _, args, _ in model.asked] == ["b", "a", "c"]
    assert recorded(path, None).generate_until([instance("c", {}), instance("a", {})]) == [again[0], first[0]]


def test_repeats_are_numbered_and_equal_prompts_shared(tmp_path: Path) -> None:
    """lm-eval lists an Instance once per repeat; two documents with one prompt are two Instances."""
    model = StubLM()
    twice, other = instance("a", {}, repeats=2), instance("a", {}, repeats=2)
    answers = recorded(tmp_path / "log", model).generate_until([twice, twice, other, other])
    assert answers == ["generate_until ('a', {}) 0", "generate_until ('a', {}) 1"] * 2
    assert sorted(repeat for _, _, repeat in model.asked) == [0, 1]


def test_kinds_do_not_share_answers(tmp_path: Path) -> None:
    model = StubLM()
    lm = recorded(tmp_path / "log", model)
    assert lm.loglikelihood([instance("a", "b")]) != lm.generate_until([instance("a", "b")])


def test_cost_is_the_whole_runs(tmp_path: Path) -> None:
    path = tmp_path / "log"
    recorded(path, StubLM()).generate_until([instance("a", {}), instance("b", {})])
    lm = recorded(path, StubLM())
    lm.generate_until([instance("a", {}), instance("c", {})])
    assert lm.log.cost["tokens_in"] == 17, "two answers and one, five each, and one more per session"
    assert lm.log.cost["wall_seconds"] > 0 and lm.log.cost["peak_memory_bytes"] > 2**20


def test_an_interrupted_model_loses_nothing_that_it_answered(tmp_path: Path) -> None:
    class Stops(StubLM):
        def answer(self, kind: str, requests: list[Any], on_answer: Any) -> None:
            on_answer(1, "second")
            raise KeyboardInterrupt

    path = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        recorded(path, Stops()).generate_until([instance("a", {}), instance("b", {})])
    model = StubLM()
    assert recorded(path, model).generate_until([instance("a", {}), instance("b", {})])[1] == "second"
    assert [args[0] for _, args, _ in model.asked] == ["a"]


def test_chat_prompts_are_lm_evals_own_without_weights(tmp_path: Path, olmoe: Any, tokenizer: Any) -> None:
    from copy import deepcopy

    from lm_eval.models.huggingface import HFLM

    chatty = deepcopy(tokenizer)
    chatty.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' and strict %}{{ raise_exception('no') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    hf = HFLM(pretrained=olmoe, tokenizer=chatty)
    lm = RecordedLM(
        ResponseLog(tmp_path / "log", HEADER), lambda: pytest.fail("opened"), lambda: chatty, True
    )
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    prefilled = [*history, {"role": "assistant", "content": "It is"}]
    assert (
        lm.apply_chat_template(history)
        == hf.apply_chat_template(history)
        == "[system]Be brief.[user]1+1?[assistant]"
    )
    assert lm.apply_chat_template(prefilled, add_generation_prompt=False) == hf.apply_chat_template(
        prefilled, False
    )
    assert lm.tokenizer_name == hf.tokenizer_name
