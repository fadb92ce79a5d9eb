"""`metrics=counterfactual` as a command: its files, the answers they belong to, and stored runs that get it later.

Broken by: routes of other noise than the answers', another run id, answers that are asked again, a baseline that is asked
for routes.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.command import run_command

TASKS = "task.name=[toy_text,toy_choice]"


def folder_of(out: str) -> Path:
    return Path(out.splitlines()[-1]).parent


def without_cost(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "counterfactual.json").read_text())
    return {key: value for key, value in found.items() if key != "cost"}


@pytest.mark.slow
def test_a_stored_run_gets_its_routes_without_a_new_answer(
    tiny_olmoe_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], loads: list[str]
) -> None:
    typed = ["method=roe", "method.n=4", "method.temperature=2", f"model.path={tiny_olmoe_dir}", "limit=3"]
    typed += ["task=lm_eval", TASKS, f"output_dir={tmp_path}"]
    plain = folder_of(run_command(capsys, *typed).out)
    answers = (plain / "responses.jsonl").read_text()
    assert not (plain / "counterfactual.json").exists()
    asked = [*typed, "metrics=counterfactual"]
    assert "metrics missing" in run_command(capsys, *asked, "mode=plan").out
    ended = run_command(capsys, *asked)
    assert ended.code == 0, ended.err
    folder = folder_of(ended.out)
    assert folder == plain
    assert (folder / "responses.jsonl").read_text() == answers
    [base] = tmp_path.glob("runs/*-base-*")
    assert not (base / "counterfactual.json").exists()
    for text in ("Counterfactual routes", "best route", "all"):
        assert text in ended.out
    assert "Routes that noise proposes" in (tmp_path / "report.html").read_text()

    # the scores of the ensemble are those of the stored answers: of the texts, and of the right choices
    found, arrays = without_cost(folder), load_file(folder / "counterfactual.safetensors")
    assert found["documents"] == found["all"]["documents"] == 6
    assert arrays["log_probs"].shape == arrays["changed"].shape == (found["all"]["tokens"], 4)
    assert arrays["changed"][:, 1:].any() and not arrays["changed"][:, 0].any()
    sums = [arrays["ensemble"][arrays["document"] == i].sum(dtype=np.float64) for i in range(6)]
    expected = right_answers(folder)
    assert sums == pytest.approx(expected, abs=1e-3)
    best = arrays["log_probs"][:, 1:].max(axis=1) - arrays["log_probs"][:, 0]
    assert found["all"]["gain"]["best"]["value"] == pytest.approx(float(best.mean()), abs=1e-6)

    # what is stored is returned; what is lost or torn is made again
    loads.clear()
    assert run_command(capsys, *asked).out == run_command(capsys, *asked, "mode=report").out == ended.out
    assert loads == []
    (folder / "counterfactual.json").write_text("{")
    assert run_command(capsys, *asked).out == ended.out
    assert without_cost(folder) == found


def right_answers(folder: Path) -> list[float]:
    """The stored log-likelihoods of the texts, then of the right choices."""
    found = []
    for task in ("toy_text", "toy_choice"):
        for line in map(json.loads, (folder / f"samples_{task}.jsonl").read_text().splitlines()):
            responses = line["filtered_resps"]
            if task == "toy_text":
                found.append(float(responses[0]))
            else:
                found.append(float(responses[int(line["target"])][0]))
    return found


@pytest.mark.slow
def test_without_temperature_nothing_is_gained_by_any_route(
    tiny_olmoe_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["method=roe", "method.n=3", "method.temperature=0", f"model.path={tiny_olmoe_dir}", "limit=2"]
    keys = ["task=toy_text", "metrics=counterfactual", f"output_dir={tmp_path}"]
    ended = run_command(capsys, *typed, *keys)
    assert ended.code == 0, ended.err
    for band in (found := without_cost(folder_of(ended.out)))["bands"] + [found["all"]]:
        for gain in band["gain"].values():
            assert gain["value"] in (0.0, None)
        assert band["has_better"]["value"] in (0.0, None)
        assert band["better"]["value"] is None
    assert math.isclose(found["all"]["log_prob"]["router"], found["all"]["log_prob"]["best"])
