"""`moe_lab.plan` is mode=plan as a data frame. Broken by a run or a number that is not the command's, by a written file."""

from __future__ import annotations

import pytest

import moe_lab
from tests.support.command import run_command


@pytest.mark.slow
def test_the_plan_is_that_of_the_command(tmp_path, capsys, tiny_olmoe_dir):
    keys = ["-m", "method=roe", "method.n=2,3", "task=toy_choice", "limit=4", f"model.path={tiny_olmoe_dir}"]
    keys.append(f"output_dir={tmp_path}")
    plan = moe_lab.plan(keys)
    frame = plan.frame()
    assert capsys.readouterr().out == "" and not any(tmp_path.iterdir())
    assert list(frame["method"]) == ["base", "roe", "roe"] and list(frame["method.n"])[1:] == [2, 3]
    assert set(frame["examples"]) == {4} and set(frame["state"]) == {"missing"} and "baseline" not in frame
    command = run_command(capsys, *keys, "mode=plan").out
    for run, tokens in zip(frame["run"], frame["tokens"], strict=True):
        assert run in command and f"{tokens:,}" in command and run in repr(plan)
    assert plan.notes[0].startswith("To run: 3") and plan.notes[0] in " ".join(command.split())
    assert "To run: 3" in plan._repr_html_() and len(plan) == 3


def test_an_experiment_is_planned(tmp_path):
    plan = moe_lab.plan(["experiment=roe/figure3", "scale=tiny", f"output_dir={tmp_path}"])
    assert {"roe", "base"} <= set(plan.frame()["method"]) and not any(tmp_path.iterdir())
