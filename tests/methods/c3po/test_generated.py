"""`method=c3po` where answers are generated, on the embedded model.

Broken by: a reference whose answer is not the model's own or not right, a label that reaches anything but the oracle,
answers that change without steps.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from moe_lab.config.schema import ModelConfig
from tests.support.command import run_command

KEYS = ["method=c3po", "task=toy_math", "limit=6", "method.reference_size=16", "method.k=2", "method.steps=3"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("outputs")


def answers(capsys, folder: Path, *keys: str) -> tuple[dict, list[str]]:
    """(the moe_lab block, what was generated)"""
    ended = run_command(capsys, f"output_dir={folder}", *keys)
    assert ended.code == 0, ended.err
    run = Path(ended.out.splitlines()[-1]).parent
    lines = (run / "samples_toy_math.jsonl").read_text().splitlines()
    return json.loads((run / "results.json").read_text())["moe_lab"], [
        json.loads(line)["resps"][0][0] for line in lines
    ]


@pytest.mark.slow
def test_without_steps_answers_are_the_untouched_models(outputs, capsys):
    _, base = answers(capsys, outputs, "method=base", "task=toy_math", "limit=6")
    for persistence in ("prompt_last", "all_new"):
        keys = [*KEYS, "method.steps=0", f"method.persistence={persistence}"]
        _, found = answers(capsys, outputs, *keys)
        assert (found == base) == (persistence == "prompt_last")  # later tokens get the prompt's, even so


@pytest.mark.slow
def test_references_are_the_models_own_right_answers(outputs, capsys):
    block, _ = answers(capsys, outputs, *KEYS)
    counts = block["c3po"]["reference"]["set"]
    assert counts["label"] == "own train split" and counts["asked"] == 16
    [folder] = (outputs / "references").iterdir()
    lines = [json.loads(line) for line in (folder / "references.jsonl").read_text().splitlines()]
    from moe_lab.tasks.toy.datasets import toy_math

    gold = {f"Question: {row['question']}\nAnswer:": row["answer"] for row in toy_math()["train"]}
    for line in lines:
        said, right = (re.search(r"#### (-?\d+)", text) for text in (line["answer"], gold[line["text"]]))
        assert line["correct"] == bool(said and said[1] == right[1])
        assert 0 < len(line["answer_ids"]) <= 32
    assert sum(line["correct"] for line in lines) == counts["correct"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["kernel_regression", "mode_finding", "oracle"])
def test_every_optimizer_generates(optimizer, outputs, capsys):
    block, found = answers(capsys, outputs, *KEYS, f"method.optimizer={optimizer}", "method.shifts=2")
    assert len(found) == 6 and block["c3po"]["optimizer"] == optimizer
    assert block["cost"]["tokens_out"] > 0


@pytest.mark.slow
def test_the_oracle_alone_is_given_the_right_answers(outputs, capsys, monkeypatch):
    from moe_lab.methods.c3po.optimizer import PathwayOptimizer
    from moe_lab.models.tokenizer import load_tokenizer
    from moe_lab.tasks.toy.datasets import toy_math

    gold = {f"Question: {row['question']}\nAnswer:": row["answer"] for row in toy_math()["test"]}
    given = []
    original = PathwayOptimizer.__call__

    def noting(self, texts, tails, own=None, **options):
        given.extend(zip(texts, own or [None] * len(texts), strict=True))
        return original(self, texts, tails, own, **options)

    monkeypatch.setattr(PathwayOptimizer, "__call__", noting)
    answers(capsys, outputs, *KEYS, "method.optimizer=oracle", "method.steps=1")
    tokenizer = load_tokenizer(ModelConfig(name="tiny"), offline=True)
    assert len(given) == 6
    for text, tail in given:
        [right] = tail.tree.continuations
        assert tuple(right) == tuple(tokenizer(f" {gold[text]}").input_ids[:32])
    given.clear()
    answers(capsys, outputs, *KEYS, "method.steps=1")
    assert [own for _, own in given] == [None] * 6


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["task=toy_math", "method.n=2"], "method.n=2 is for multiple-choice questions"),
        (["task=toy_math", "method.trace=true"], "method.trace=true is for multiple-choice questions"),
        (["task=toy_choice", "method.persistence=all_new"], "about generated answers"),
        (["task=toy_choice", "method.negative=1.0", "method.optimizer=oracle"], "method.optimizer=ngd"),
        (["task=toy_choice", "method.temperature=-1.0", "method.n=2"], "at least 0"),
        (["task=toy_text", "task.answer=text"], "likelihood of texts"),
    ],
)
def test_what_does_not_go_together_is_refused(keys, told, outputs, capsys, loads):
    ended = run_command(capsys, "method=c3po", f"output_dir={outputs}", *keys)
    assert ended.code == 2 and told in ended.err
    assert loads == []
