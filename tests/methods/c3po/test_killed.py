"""`kill -9` of the command while it builds a reference set, within a step of optimization, and among the answers of a
batch: the same command continues and ends with the numbers of a run that was not killed.

Broken by: half a reference set that is used, an answer that is computed again or lost, a pathway that depends on which questions are optimized
together, operations that are averaged over sessions otherwise than over questions.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moe_lab.cli.main import main
from moe_lab.methods.c3po import descent
from moe_lab.methods.c3po import engine as pathway_engine
from moe_lab.methods.references import store as reference_files
from moe_lab.results.logs import ResponseLog
from tests.support.command import exit_code, run_command

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


def in_small_batches() -> None:
    pathway_engine.AT_ONCE = AT_ONCE


def killed_after_the_answers_to_references(argv: list[str]) -> None:
    reference_files.pathways = after(0, reference_files.pathways)
    main(argv)


def killed_in_a_step_of_the_second_batch(argv: list[str]) -> None:
    in_small_batches()
    step = descent.NeighbourLoss.gradient
    descent.NeighbourLoss.gradient = after(STEPS + 2, step)
    main(argv)


def killed_among_the_answers_of_the_second_batch(argv: list[str]) -> None:
    in_small_batches()
    ResponseLog.answer = after(5, ResponseLog.answer)
    main(argv)


def stored(output: Path) -> int:
    [file] = output.glob("runs/*c3po*/responses.jsonl")
    return len(file.read_text().splitlines())


def numbers(path: str) -> tuple[dict[str, Any], list[list[float]]]:
    folder = Path(path).parent
    [samples] = folder.glob("samples_*.jsonl")
    scores = [
        [float(choice[0][0]) for choice in json.loads(line)["resps"]]
        for line in samples.read_text().splitlines()
    ]
    return json.loads(Path(path).read_text()), scores


@pytest.mark.slow
def test_a_killed_run_ends_with_the_numbers_of_one_that_was_not(tmp_path, capsys, monkeypatch, flops):
    def argv(folder: str) -> list[str]:
        few = [f"limit={QUESTIONS}", "method.reference_size=60", f"method.steps={STEPS}"]
        return ["method=c3po", "task=toy_choice", *few, f"output_dir={tmp_path / folder}"]

    broken = argv("broken")
    assert exit_code(killed_after_the_answers_to_references, broken) == -signal.SIGKILL
    assert not list((tmp_path / "broken").glob("references/*/references.json*"))
    assert exit_code(killed_in_a_step_of_the_second_batch, broken) == -signal.SIGKILL
    [pathways] = (tmp_path / "broken").glob("references/*/pathways.safetensors")
    first = stored(tmp_path / "broken")
    assert exit_code(killed_among_the_answers_of_the_second_batch, broken) == -signal.SIGKILL
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
