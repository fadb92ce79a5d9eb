"""`method=c3po` after `kill -9` of the command.

Broken by: half a reference set that is used, an answer that is computed again or lost, a pathway
that depends on which questions are optimized together, operations that are averaged over sessions
otherwise than over questions.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moe_lab.cli.main import main
from moe_lab.methods.c3po import engine as pathway_engine
from moe_lab.methods.c3po.descent import NeighbourLoss
from moe_lab.methods.references import store as reference_files
from moe_lab.results.response_log import ResponseLog
from tests.support.command import exit_code, run_command

QUESTIONS = 8
AT_ONCE = 4
STEPS = 4


def command(output: Path) -> list[str]:
    return [
        "method=c3po",
        "task=toy_choice",
        f"limit={QUESTIONS}",
        "method.reference_size=60",
        f"method.steps={STEPS}",
        f"output_dir={output}",
    ]


def killing_after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function so often, and then SIGKILL in place of the next call."""
    calls_done = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls_done
        if calls_done == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        calls_done += 1
        return function(*args, **kwargs)

    return counted


def run_and_kill(argv: list[str], owner: Any, name: str, calls: int) -> None:
    """The command, with SIGKILL in place of a call of `owner.name` after so many calls."""
    pathway_engine.AT_ONCE = AT_ONCE
    setattr(owner, name, killing_after(calls, getattr(owner, name)))
    main(argv)


def stored_lines(output: Path) -> int:
    """Lines of C3PO's response log."""
    [file] = output.glob("runs/*c3po*/responses.jsonl")
    return len(file.read_text().splitlines())


class Stored(NamedTuple):
    results: dict[str, Any]
    scores: list[list[float]]
    """The log-likelihoods of the choices of each question."""


def stored(results_file: Path) -> Stored:
    [samples_file] = results_file.parent.glob("samples_*.jsonl")
    scores = []
    for line in samples_file.read_text().splitlines():
        responses = json.loads(line)["resps"]
        scores.append([float(response[0][0]) for response in responses])
    return Stored(json.loads(results_file.read_text()), scores)


def results_of(capsys: Any, argv: list[str]) -> Stored:
    ended = run_command(capsys, *argv)
    assert ended.code == 0, ended.err
    return stored(Path(ended.out.splitlines()[-1]))


@pytest.mark.slow
def test_a_killed_run_ends_with_the_numbers_of_one_that_was_not(
    tmp_path, capsys, monkeypatch, flops
):
    output = tmp_path / "broken"
    argv = command(output)

    # while the reference set is built
    assert exit_code(run_and_kill, argv, reference_files, "pathways", 0) == -signal.SIGKILL
    assert list(output.glob("references/*/references.json*")) == []
    # while the second group of questions is optimized
    assert exit_code(run_and_kill, argv, NeighbourLoss, "gradient", STEPS + 2) == -signal.SIGKILL
    [pathways_file] = output.glob("references/*/pathways.safetensors")
    built = pathways_file.stat().st_mtime_ns
    lines_after_first = stored_lines(output)
    # while answers are stored
    assert exit_code(run_and_kill, argv, ResponseLog, "answer", 5) == -signal.SIGKILL
    lines_after_second = stored_lines(output)
    assert 0 < lines_after_first < lines_after_second < 4 * QUESTIONS

    monkeypatch.setattr(pathway_engine, "AT_ONCE", AT_ONCE)
    continued = results_of(capsys, argv)
    assert pathways_file.stat().st_mtime_ns == built
    uninterrupted = results_of(capsys, command(tmp_path / "whole"))

    assert continued.results["results"] == uninterrupted.results["results"]
    for scores, expected_scores in zip(continued.scores, uninterrupted.scores, strict=True):
        assert scores == pytest.approx(expected_scores, abs=1e-4)
    block = continued.results["moe_lab"]
    expected_block = uninterrupted.results["moe_lab"]
    assert block["paired"] == expected_block["paired"]
    assert block["c3po"]["reference"]["set"] == expected_block["c3po"]["reference"]["set"]
    flops_per_sample = block["c3po"]["flops_per_sample"]
    expected_flops = expected_block["c3po"]["flops_per_sample"]
    assert flops_per_sample == pytest.approx(expected_flops, rel=0.2)
