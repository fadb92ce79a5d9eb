"""`method.trace=true`. Broken by: a line of another question, states that are not those of the optimization, an answer
without a line.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from moe_lab.methods.references.embeddings import text_key
from tests.support import rounding
from tests.support.command import run_command

KEYS = ["method=c3po", "task=toy_choice", "limit=20", "method.reference_size=60", "method.k=2"]


def traced(capsys, folder: Path, *keys: str) -> tuple[dict, list[dict], list[dict]]:
    """(the c3po block, traces, samples)"""
    ended = run_command(capsys, f"output_dir={folder}", *KEYS, "method.trace=true", *keys)
    assert ended.code == 0, ended.err
    run = Path(ended.out.splitlines()[-1]).parent
    lines = [json.loads(line) for line in (run / "traces.jsonl").read_text().splitlines()]
    samples = [json.loads(line) for line in (run / "samples_toy_choice.jsonl").read_text().splitlines()]
    return json.loads((run / "results.json").read_text())["moe_lab"]["c3po"], lines, samples


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
def test_every_answer_has_its_line(keys, states, tmp_path, capsys):
    block, lines, samples = traced(capsys, tmp_path, *keys)
    by_prompt = {line["prompt"]: line for line in lines}
    assert len(lines) == len(samples) == 20
    changed = 0
    for sample in samples:
        line = by_prompt[text_key(sample["arguments"]["gen_args_0"]["arg_0"])]
        answered = {
            sample["arguments"][f"gen_args_{i}"]["arg_1"]: float(sample["resps"][i][0][0]) for i in range(4)
        }
        assert dict(zip(line["continuations"], line["scores"][-1], strict=True)) == pytest.approx(answered)
        assert len(line["scores"]) == len(line["losses"]) == states
        before, after = torch.tensor(line["before"]), torch.tensor(line["after"])
        assert before.shape == after.shape == (1, 5, 16) and line["layers"] == block["layers"]
        assert torch.allclose(after.sum(-1), torch.ones(1, 5), atol=1e-4)
        changed += not torch.allclose(after, before, atol=1e-4)
        assert len(line["neighbours"]) == (0 if "oracle" in str(keys) else 2)
        if line["neighbours"]:
            assert sum(each["weight"] for each in line["neighbours"]) == rounding.approx(1)
    assert changed > 10


@pytest.mark.slow
def test_a_trace_changes_no_answer_and_begins_with_the_untouched_model(tmp_path, capsys):
    _, lines, traced_samples = traced(capsys, tmp_path)
    ended = run_command(capsys, f"output_dir={tmp_path}", *KEYS)
    run = Path(ended.out.splitlines()[-1]).parent
    assert not (run / "traces.jsonl").exists()
    plain = [json.loads(line) for line in (run / "samples_toy_choice.jsonl").read_text().splitlines()]
    assert [sample["resps"] for sample in traced_samples] == [sample["resps"] for sample in plain]
    [base] = (tmp_path / "runs").glob("tiny-base-*")
    for text in (base / "samples_toy_choice.jsonl").read_text().splitlines():
        sample = json.loads(text)
        key = text_key(sample["arguments"]["gen_args_0"]["arg_0"])
        line = next(line for line in lines if line["prompt"] == key)
        own = [float(resps[0][0]) for resps in sample["resps"]]
        assert line["scores"][0] == pytest.approx(own, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", ["method.optimizer=ngd", "method.negative=5.0", "method.optimizer=mode_finding"]
)
def test_questions_abstain(more, tmp_path, capsys):
    keys = ("method.steps=2", "method.abstain=0.7", more)
    block, lines, _ = traced(capsys, tmp_path, *keys)
    alone = [line for line in lines if not line["neighbours"]]
    assert 0 < len(alone) == block["reference"]["too_far"] < 20
    for line in alone:
        assert torch.allclose(torch.tensor(line["after"]), torch.tensor(line["before"]), atol=1e-6)
        assert line["scores"][0] == rounding.approx(line["scores"][-1])
    nearest = [line["neighbours"][0]["distance"] for line in lines if line["neighbours"]]
    assert max(nearest) <= 0.7
