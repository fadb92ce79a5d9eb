"""The traces of `method=c3po`: a line for each answer.

Broken by: a trace of another question, states that are not those of the optimization, an answer
without a line, a trace that changes answers.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from moe_lab.methods.references.embeddings import text_key
from tests.support import rounding
from tests.support.command import run_command
from tests.support.ended import block_of, samples_of

COMMAND = ["method=c3po", "task=toy_choice", "limit=10", "method.reference_size=60", "method.k=2"]


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Drawing takes half of a traced run here; the tests of figures draw traces."""
    monkeypatch.setattr("moe_lab.runs.attempts.write_run_figures", lambda *arguments: [])


class TracedRun(NamedTuple):
    block: dict[str, Any]
    """`moe_lab` of results.json."""
    traces: dict[str, dict[str, Any]]
    """By the key of the prompt."""
    samples: list[dict[str, Any]]


def traced(capsys: Any, output: Path, *overrides: str) -> TracedRun:
    block = block_of(run_command(capsys, f"output_dir={output}", *COMMAND, *overrides))
    traces = {}
    for file in output.glob(f"runs/*-{block['run_id'][:8]}/traces.jsonl"):
        for line in file.read_text().splitlines():
            trace = json.loads(line)
            assert trace["prompt"] not in traces
            traces[trace["prompt"]] = trace
    return TracedRun(block, traces, samples_of(output, run_id=block["run_id"]))


def key_of(sample: dict[str, Any]) -> str:
    return text_key(sample["arguments"]["gen_args_0"]["arg_0"])


def scores_of(sample: dict[str, Any]) -> dict[str, float]:
    """{choice: its log-likelihood}"""
    scores = {}
    for arguments, response in zip(sample["arguments"].values(), sample["resps"], strict=True):
        scores[arguments["arg_1"]] = float(response[0][0])
    return scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "states", "neighbours"),
    [
        (["method.steps=4"], 5, 2),
        (["method.optimizer=kernel_regression"], 2, 2),
        (["method.optimizer=mode_finding", "method.shifts=3"], 4, 2),
        (["method.optimizer=oracle", "method.steps=2"], 3, 0),
    ],
    ids=str,
)
def test_every_answer_has_its_line(overrides, states, neighbours, outputs, capsys):
    run = traced(capsys, outputs, "method.trace=true", *overrides)
    assert len(run.samples) == 10
    assert len(run.traces) == 10
    changed = 0
    for sample in run.samples:
        trace = run.traces[key_of(sample)]
        last_scores = dict(zip(trace["continuations"], trace["scores"][-1], strict=True))
        assert last_scores == pytest.approx(scores_of(sample))
        assert len(trace["scores"]) == states
        assert len(trace["losses"]) == states
        assert trace["layers"] == run.block["c3po"]["layers"]

        before = torch.tensor(trace["before"])
        after = torch.tensor(trace["after"])
        assert before.shape == (1, 5, 16)
        assert after.shape == (1, 5, 16)
        assert torch.allclose(after.sum(-1), torch.ones(1, 5), atol=1e-4)
        changed += not torch.allclose(after, before, atol=1e-4)

        assert len(trace["neighbours"]) == neighbours
        if neighbours > 0:
            weights = [neighbour["weight"] for neighbour in trace["neighbours"]]
            assert sum(weights) == rounding.approx(1)
    assert changed > 5


@pytest.mark.slow
def test_a_trace_changes_no_answer(outputs, capsys):
    with_trace = traced(capsys, outputs, "method.trace=true", "method.steps=3")
    without_trace = traced(capsys, outputs, "method.steps=3")
    assert without_trace.traces == {}
    responses = [sample["resps"] for sample in with_trace.samples]
    assert responses == [sample["resps"] for sample in without_trace.samples]


@pytest.mark.slow
def test_a_trace_begins_with_the_base_model(outputs, capsys):
    run = traced(capsys, outputs, "method.trace=true", "method.steps=3")
    base_samples = samples_of(outputs, "base")
    assert len(base_samples) == 10
    for sample in base_samples:
        first_scores = run.traces[key_of(sample)]["scores"][0]
        assert first_scores == pytest.approx(list(scores_of(sample).values()), abs=1e-4)
