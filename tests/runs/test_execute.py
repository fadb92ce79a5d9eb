"""Breaks if what can be told before weights load is told later, or what is short while running gives a traceback."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moe_lab.config.schema import Config
from moe_lab.errors import ModelError, MoeLabError
from moe_lab.models.memory import ModelPool
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from tests.support.runs import config, small_data


@pytest.fixture
def roe(tiny_olmoe_dir: Path, tmp_path: Path) -> Config:
    data = small_data(tmp_path / "data")
    return config(tiny_olmoe_dir, data, tmp_path / "out", "arc_easy", "roe", method_keys={"n": 2}, limit=2)


def test_a_missing_tokenizer_is_told_before_weights_load(roe, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(str(roe.model.path), folder)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"model\.tokenizer") as told:
        prepare(replace(roe, model=replace(roe.model, path=str(folder))))
    assert told.value.exit_code == 2 and not (tmp_path / "out").exists()


def allocate_too_much() -> None:
    torch.empty(2**60)


def raised(error: BaseException) -> Callable[[], None]:
    def short() -> None:
        raise error

    return short


@pytest.mark.slow
@pytest.mark.parametrize(
    "short",
    [raised(torch.OutOfMemoryError("CUDA out of memory")), raised(MemoryError()), allocate_too_much],
    ids=["device", "machine", "cpu"],
)
def test_too_little_memory_says_what_needs_less_and_keeps_answers(roe, monkeypatch, short):
    from moe_lab.engine.lm import EngineLM

    answer = EngineLM.answer
    computed: list[int] = []

    def answer_two(self: EngineLM, kind: str, requests: list[Any], on_answer: Any) -> None:
        def report(index: int, response: Any) -> None:
            if len(computed) == 2:
                short()
            computed.append(index)
            on_answer(index, response)

        answer(self, kind, requests, report)

    run = prepare(replace(roe, baseline=False))
    with monkeypatch.context() as patch:
        patch.setattr(EngineLM, "answer", answer_two)
        with pytest.raises(MoeLabError, match=r"batch_size=(.|\n)*max_length=(.|\n)*method\.n=") as told:
            execute(run, ModelPool())
    assert told.value.exit_code == 1 and "Stored answers are kept" in str(told.value)
    answers = [line for line in (run.folder / "responses.jsonl").read_text().splitlines() if '"key"' in line]
    assert len(answers) == 2
    assert not execute(run, ModelPool()).stored


@pytest.mark.slow
def test_another_runtime_error_keeps_its_class(roe, monkeypatch):
    from moe_lab.engine.lm import EngineLM

    monkeypatch.setattr(EngineLM, "answer", lambda *_: raised(RuntimeError("a defect"))())
    with pytest.raises(RuntimeError, match="a defect"):
        execute(prepare(roe), ModelPool())
