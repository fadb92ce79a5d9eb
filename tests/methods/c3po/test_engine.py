"""The engine of `method=c3po`: re-routed tokens and generated answers of the command.

Broken by: the weights of another question or token, a reference whose answer is not the model's own
or not right, a label that reaches anything but the oracle, answers that change without steps.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.methods.c3po.engine import PathwayEngine
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.tasks.toy import toy_math
from tests.support.command import run_command
from tests.support.ended import answers as stored_answers
from tests.support.ended import block_of

COMMAND = [
    "method=c3po",
    "task=toy_math",
    "limit=6",
    "method.reference_size=16",
    "method.k=2",
    "method.steps=2",
]


class Answers(NamedTuple):
    block: dict[str, Any]
    """`moe_lab` of results.json."""
    texts: list[str]
    """What was generated."""


def answers(capsys: Any, output: Path, *overrides: str) -> Answers:
    block = block_of(run_command(capsys, f"output_dir={output}", *overrides))
    responses = stored_answers(output, run_id=block["run_id"])
    return Answers(block, [response[0][0] for response in responses])


def gold_answers(split: str) -> dict[str, str]:
    """{prompt: the right answer}"""
    gold = {}
    for row in toy_math()[split]:
        gold[f"Question: {row['question']}\nAnswer:"] = row["answer"]
    return gold


@pytest.mark.slow
def test_without_steps_answers_are_the_base_models(outputs, capsys):
    base = answers(capsys, outputs, "method=base", "task=toy_math", "limit=6")
    c3po = answers(capsys, outputs, *COMMAND, "method.steps=0", "method.persistence=prompt_last")
    assert c3po.texts == base.texts


@pytest.mark.slow
def test_without_steps_later_tokens_may_get_the_prompts_pathway(outputs, capsys):
    base = answers(capsys, outputs, "method=base", "task=toy_math", "limit=6")
    c3po = answers(capsys, outputs, *COMMAND, "method.steps=0", "method.persistence=all_new")
    assert c3po.texts != base.texts


def final_number(answer: str) -> str | None:
    """Of "...\n#### 7" the 7."""
    match = re.search(r"#### (-?\d+)", answer)
    if match is None:
        return None
    return match[1]


@pytest.mark.slow
def test_references_are_the_models_own_right_answers(outputs, capsys):
    block = answers(capsys, outputs, *COMMAND).block
    counts = block["c3po"]["reference"]["set"]
    assert counts["label"] == "own train split"
    assert counts["asked"] == 16

    [folder] = (outputs / "references").iterdir()
    lines = [json.loads(line) for line in (folder / "references.jsonl").read_text().splitlines()]
    gold = gold_answers("train")
    correct = 0
    for line in lines:
        right_number = final_number(gold[line["text"]])
        assert right_number is not None
        assert line["correct"] == (final_number(line["answer"]) == right_number)
        assert 0 < len(line["answer_ids"]) <= 32
        correct += line["correct"]
    assert correct == counts["correct"]
    assert correct > 2


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["kernel_regression", "mode_finding", "oracle"])
def test_every_optimizer_generates(optimizer, outputs, capsys):
    overrides = [f"method.optimizer={optimizer}", "method.shifts=2"]
    block, texts = answers(capsys, outputs, *COMMAND, *overrides)
    assert len(texts) == 6
    assert block["c3po"]["optimizer"] == optimizer
    assert block["cost"]["tokens_out"] > 0


@pytest.fixture
def optimized(monkeypatch) -> list[tuple[str, Any]]:
    """(the question, what the optimizer is given of its right answer) of each question."""
    questions: list[tuple[str, Any]] = []
    optimize = PathwayEngine.optimize

    def record(self, texts, tails, own_answers=None, **options):
        if own_answers is None:
            questions.extend((text, None) for text in texts)
        else:
            questions.extend(zip(texts, own_answers, strict=True))
        return optimize(self, texts, tails, own_answers, **options)

    monkeypatch.setattr(PathwayEngine, "optimize", record)
    return questions


@pytest.mark.slow
def test_the_oracle_is_given_the_right_answers(outputs, capsys, optimized):
    answers(capsys, outputs, *COMMAND, "method.optimizer=oracle", "method.steps=1")
    tokenizer = load_tokenizer(ModelConfig(name="tiny"), offline=True)
    gold = gold_answers("test")
    assert len(optimized) == 6
    for text, suffix in optimized:
        [continuation] = suffix.tree.continuations
        assert list(continuation) == tokenizer(f" {gold[text]}").input_ids[:32]


@pytest.mark.slow
def test_no_other_optimizer_is_given_the_right_answers(outputs, capsys, optimized):
    answers(capsys, outputs, *COMMAND, "method.steps=1")
    assert [right_answer for _, right_answer in optimized] == [None] * 6
