"""The engine of `method=c3po`: re-routed tokens, generated answers, traces, and `kill -9` of the command.

Broken by: the weights of another question or token, a reference whose answer is not the model's own or not right, a
label that reaches anything but the oracle, answers that change without steps, a trace of another question, states that
are not those of the optimization, an answer without a line. After a kill: half a reference set that is used, an answer
that is computed again or lost, a pathway that depends on which questions are optimized together, operations that are
averaged over sessions otherwise than over questions.
"""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moe_lab.cli.main import main
from moe_lab.config.schema import ModelConfig
from moe_lab.methods.c3po import engine as pathway_engine
from moe_lab.methods.c3po.descent import NeighbourLoss
from moe_lab.methods.c3po.engine import PathwayEngine
from moe_lab.methods.references import store as reference_files
from moe_lab.methods.references.embeddings import text_key
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.results.response_log import ResponseLog
from moe_lab.tasks.toy import toy_math
from tests.support import rounding
from tests.support.command import exit_code, run_command
from tests.support.ended import answers as stored_answers
from tests.support.ended import block_of, samples_of

KEYS = [
    "method=c3po",
    "task=toy_math",
    "limit=6",
    "method.reference_size=16",
    "method.k=2",
    "method.steps=2",
]


def answers(capsys, folder, *keys):
    """(the moe_lab block, what was generated)"""
    block = block_of(run_command(capsys, f"output_dir={folder}", *keys))
    return block, [resps[0][0] for resps in stored_answers(folder, run_id=block["run_id"])]


@pytest.mark.slow
def test_without_steps_answers_are_the_untouched_models(outputs, capsys):
    _, base = answers(capsys, outputs, "method=base", "task=toy_math", "limit=6")
    for persistence in ("prompt_last", "all_new"):
        keys = [*KEYS, "method.steps=0", f"method.persistence={persistence}"]
        _, found = answers(capsys, outputs, *keys)
        # later tokens get the prompt's, even so
        assert (found == base) == (persistence == "prompt_last")


@pytest.mark.slow
def test_references_are_the_models_own_right_answers(outputs, capsys):
    block, _ = answers(capsys, outputs, *KEYS)
    counts = block["c3po"]["reference"]["set"]
    assert counts["label"] == "own train split" and counts["asked"] == 16
    [folder] = (outputs / "references").iterdir()
    lines = [json.loads(line) for line in (folder / "references.jsonl").read_text().splitlines()]
    gold = {f"Question: {row['question']}\nAnswer:": row["answer"] for row in toy_math()["train"]}
    for line in lines:
        said, right = (
            re.search(r"#### (-?\d+)", text) for text in (line["answer"], gold[line["text"]])
        )
        assert line["correct"] == bool(said and said[1] == right[1])
        assert 0 < len(line["answer_ids"]) <= 32
    assert sum(line["correct"] for line in lines) == counts["correct"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["kernel_regression", "mode_finding", "oracle"])
def test_every_optimizer_generates(optimizer, outputs, capsys):
    block, found = answers(
        capsys, outputs, *KEYS, f"method.optimizer={optimizer}", "method.shifts=2"
    )
    assert len(found) == 6 and block["c3po"]["optimizer"] == optimizer
    assert block["cost"]["tokens_out"] > 0


@pytest.mark.slow
def test_the_oracle_alone_is_given_the_right_answers(outputs, capsys, monkeypatch):
    gold = {f"Question: {row['question']}\nAnswer:": row["answer"] for row in toy_math()["test"]}
    given = []
    original = PathwayEngine.optimize

    def noting(self, texts, tails, own=None, **options):
        given.extend(zip(texts, own or [None] * len(texts), strict=True))
        return original(self, texts, tails, own, **options)

    monkeypatch.setattr(PathwayEngine, "optimize", noting)
    answers(capsys, outputs, *KEYS, "method.optimizer=oracle", "method.steps=1")
    tokenizer = load_tokenizer(ModelConfig(name="tiny"), offline=True)
    assert len(given) == 6
    for text, tail in given:
        [right] = tail.tree.continuations
        assert tuple(right) == tuple(tokenizer(f" {gold[text]}").input_ids[:32])
    given.clear()
    answers(capsys, outputs, *KEYS, "method.steps=1")
    assert [own for _, own in given] == [None] * 6


TRACED = ["method=c3po", "task=toy_choice", "limit=10", "method.reference_size=60", "method.k=2"]


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Pictures of traces are tested with the figures; drawing them takes half of a traced run here."""
    monkeypatch.setattr("moe_lab.runs.attempts.write_run_figures", lambda *given: [])


def traced(capsys, folder, *keys):
    """(the moe_lab block, traces if there are some, samples)"""
    block = block_of(run_command(capsys, f"output_dir={folder}", *TRACED, *keys))
    files = [*folder.glob(f"runs/*-{block['run_id'][:8]}/traces.jsonl")]
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return block, lines, samples_of(folder, run_id=block["run_id"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "states"),
    [
        (["method.steps=4"], 5),
        (["method.optimizer=kernel_regression"], 2),
        (["method.optimizer=mode_finding", "method.shifts=3"], 4),
        (["method.optimizer=oracle", "method.steps=2"], 3),
    ],
    ids=str,
)
def test_every_answer_has_its_line(keys, states, outputs, capsys):
    block, lines, samples = traced(capsys, outputs / "traces", "method.trace=true", *keys)
    by_prompt = {line["prompt"]: line for line in lines}
    assert len(lines) == len(samples) == 10
    changed = 0
    for sample in samples:
        line = by_prompt[text_key(sample["arguments"]["gen_args_0"]["arg_0"])]
        asked = [sample["arguments"][f"gen_args_{i}"]["arg_1"] for i in range(4)]
        answered = {choice: float(sample["resps"][i][0][0]) for i, choice in enumerate(asked)}
        assert dict(zip(line["continuations"], line["scores"][-1], strict=True)) == pytest.approx(
            answered
        )
        assert len(line["scores"]) == len(line["losses"]) == states
        before, after = torch.tensor(line["before"]), torch.tensor(line["after"])
        assert (
            before.shape == after.shape == (1, 5, 16) and line["layers"] == block["c3po"]["layers"]
        )
        assert torch.allclose(after.sum(-1), torch.ones(1, 5), atol=1e-4)
        changed += not torch.allclose(after, before, atol=1e-4)
        assert len(line["neighbours"]) == (0 if "oracle" in str(keys) else 2)
        if line["neighbours"]:
            assert sum(each["weight"] for each in line["neighbours"]) == rounding.approx(1)
    assert changed > 5


@pytest.mark.slow
def test_a_trace_changes_no_answer_and_begins_with_the_untouched_model(outputs, capsys):
    _, lines, samples = traced(capsys, outputs / "traces", "method.trace=true", "method.steps=3")
    _, untraced, plain = traced(capsys, outputs / "traces", "method.steps=3")
    assert untraced == [] and [one["resps"] for one in samples] == [one["resps"] for one in plain]
    for sample in samples_of(outputs / "traces", "base"):
        key = text_key(sample["arguments"]["gen_args_0"]["arg_0"])
        line = next(line for line in lines if line["prompt"] == key)
        own = [float(resps[0][0]) for resps in sample["resps"]]
        assert line["scores"][0] == pytest.approx(own, abs=1e-4)


QUESTIONS, AT_ONCE, STEPS = 8, 4, 4


def after(calls: int, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` so often, and then SIGKILL in place of the next time."""
    made = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        if len(made) == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        made.append(args)
        return run(*args, **kwargs)

    return counted


def killed_at(argv: list[str], owner: Any, name: str, calls: int) -> None:
    """The command, with SIGKILL in place of a call after so many calls."""
    pathway_engine.AT_ONCE = AT_ONCE
    setattr(owner, name, after(calls, getattr(owner, name)))
    main(argv)


def stored(output: Path) -> int:
    [file] = output.glob("runs/*c3po*/responses.jsonl")
    return len(file.read_text().splitlines())


def numbers(path: str) -> tuple[dict[str, Any], list[list[float]]]:
    folder = Path(path).parent
    [samples] = folder.glob("samples_*.jsonl")
    responses = [json.loads(line)["resps"] for line in samples.read_text().splitlines()]
    return json.loads(Path(path).read_text()), [
        [float(one[0][0]) for one in each] for each in responses
    ]


@pytest.mark.slow
def test_a_killed_run_ends_with_the_numbers_of_one_that_was_not(
    tmp_path, capsys, monkeypatch, flops
):
    def argv(folder: str) -> list[str]:
        few = [f"limit={QUESTIONS}", "method.reference_size=60", f"method.steps={STEPS}"]
        return ["method=c3po", "task=toy_choice", *few, f"output_dir={tmp_path / folder}"]

    broken = argv("broken")
    assert exit_code(killed_at, broken, reference_files, "pathways", 0) == -signal.SIGKILL
    assert not list((tmp_path / "broken").glob("references/*/references.json*"))
    assert exit_code(killed_at, broken, NeighbourLoss, "gradient", STEPS + 2) == -signal.SIGKILL
    [pathways] = (tmp_path / "broken").glob("references/*/pathways.safetensors")
    first = stored(tmp_path / "broken")
    assert exit_code(killed_at, broken, ResponseLog, "answer", 5) == -signal.SIGKILL
    second = stored(tmp_path / "broken")
    assert 0 < first < second < 4 * QUESTIONS
    built = pathways.stat().st_mtime_ns

    monkeypatch.setattr(pathway_engine, "AT_ONCE", AT_ONCE)
    continued = run_command(capsys, *broken)
    assert continued.code == 0, continued.err
    assert pathways.stat().st_mtime_ns == built
    whole = run_command(capsys, *argv("whole"))
    assert whole.code == 0, whole.err
    found, scores = numbers(continued.out.splitlines()[-1])
    expected, own = numbers(whole.out.splitlines()[-1])
    assert found["results"] == expected["results"]
    for one, other in zip(scores, own, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    mine, theirs = found["moe_lab"]["c3po"], expected["moe_lab"]["c3po"]
    assert mine["reference"]["set"] == theirs["reference"]["set"]
    assert mine["flops_per_sample"] == pytest.approx(theirs["flops_per_sample"], rel=0.2)
    assert found["moe_lab"]["paired"] == expected["moe_lab"]["paired"]
