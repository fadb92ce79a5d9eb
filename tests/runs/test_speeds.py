"""Measured speeds, and pilots of a plan: a few documents answered for their speed.

Broken by: the speed of another model, method or task, of an older run, of a damaged file; a pilot that is repeated, stored as a run, or of other documents than asked; one that trains a model or makes a
whole reference set; a failure that ends the plan.
"""

import json
import os

import pytest

from moe_lab.errors import ModelError
from moe_lab.runs import budget
from moe_lab.runs.budget import Speed, measured_speed
from tests.support.command import run_command
from tests.support.stored_runs import generated_line, stored_run

LABEL = ("tiny", "roe", "toy_choice")
ROE = ["mode=plan", "method=roe", "method.n=2", "method.temperature=0.1", "model=tiny", "task=toy_choice"]


def test_each_method_answers_once_and_the_plan_has_its_hours(tmp_path, capsys):
    command = [*ROE, "pilot=3", f"output_dir={tmp_path}"]
    first = run_command(capsys, *command)
    assert first.code == 0, first.err
    assert first.err.count("Pilot: 3 documents") == 2 and "tiny, base, toy_choice" in first.err
    assert "for 2 of 2 rows" in first.out
    speed = measured_speed(tmp_path, *LABEL)
    assert speed is not None and speed.tokens_per_second > 0 and speed.device == "cpu"
    again = run_command(capsys, *command)
    assert "Pilot" not in again.err and "for 2 of 2 rows" in again.out
    assert [file.name for file in tmp_path.iterdir()] == ["pilots"], "no run, no answers"
    assert not list(tmp_path.glob("pilots/runs/*/report*")) and speed == measured_speed(tmp_path, *LABEL)


@pytest.mark.slow
def test_the_documents_of_a_pilot_are_divided_among_tasks(tmp_path, capsys):
    command = "mode=plan pilot=4 method=base model=tiny task=lm_eval task.name=[toy_choice,toy_math]".split()
    ended = run_command(capsys, *command, f"output_dir={tmp_path}")
    assert ended.code == 0, ended.err
    files = list((tmp_path / "pilots" / "runs").glob("*/samples_*.jsonl"))
    assert sorted(len(file.read_text().splitlines()) for file in files) == [1, 1, 2, 2]


def test_a_pilot_that_fails_leaves_the_plan(tmp_path, capsys, monkeypatch):
    def refused(run, models):
        raise ModelError("no weights here.\nGive others.")

    monkeypatch.setattr("moe_lab.runs.execute.execute", refused)
    ended = run_command(capsys, *ROE, "seeds=2", "pilot=3", f"output_dir={tmp_path}")
    assert ended.code == 0 and ended.err.count("It has no speed: no weights here") == 2
    assert "Hours here: add pilot=8" in ended.out


@pytest.mark.parametrize(
    ("typed", "methods"),
    [
        ("method=finetune-freeze model=tiny task=toy_choice", ["base"]),
        ("method=roe method.n=2 model=tiny task=toy_text tuning=uniform tuning.step=2", ["roe"]),
        ("experiment=c3po/table14", ["base", "c3po"]),
    ],
    ids=["no training", "after a study", "once for all kernels"],
)
def test_runs_without_a_speed_have_a_pilot(typed, methods, tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("moe_lab.runs.execute.execute", lambda run, models: asked.append(run))
    ended = run_command(capsys, *typed.split(), "mode=plan", "pilot=2", "limit=2", f"output_dir={tmp_path}")
    assert ended.code == 0, ended.err
    assert [run.config.method.name for run in asked[::2]] == methods


@pytest.mark.slow
def test_references_of_a_pilot_are_few_and_its_own(tmp_path, capsys):
    command = "mode=plan pilot=3 method=c3po model=tiny task=toy_choice".split()
    ended = run_command(capsys, *command, f"output_dir={tmp_path}")
    assert ended.code == 0, ended.err
    assert not (tmp_path / "references").exists()
    [record] = (tmp_path / "pilots" / "references").glob("*/references.json")
    assert json.loads(record.read_text())["asked"] == budget.REFERENCES
    assert measured_speed(tmp_path, "tiny", "c3po", "toy_choice") is not None


def store(output, run_id: str, method: str, speed: float | None, written: int, task: str = "t") -> None:
    cost = {"tokens_per_second": speed, "device": "cpu"}
    run = stored_run(output, run_id * 64, [generated_line(0, ("a", 1.0))], method, task=task, cost=cost)
    folder = run.stored_in.rename(run.stored_in.parent / f"tiny-{method}-{task}-{run_id * 8}")
    os.utime(folder / "results.json", (written, written))


def test_the_newest_run_of_the_same_model_method_and_task_counts(tmp_path):
    store(tmp_path, "a", "roe", 100.0, written=1)
    store(tmp_path, "b", "roe", 50.0, written=2)
    store(tmp_path, "c", "roe", None, written=3)
    store(tmp_path, "d", "base", 7.0, written=4)
    store(tmp_path, "e", "roe", 9.0, written=5, task="other")
    broken = tmp_path / "runs" / "tiny-roe-t-ffffffff"
    broken.mkdir()
    (broken / "results.json").write_text("{")
    (tmp_path / "runs" / "tiny-roe-t-00000000").symlink_to(tmp_path / "gone")
    speed = measured_speed(tmp_path, "tiny", "roe", "t")
    assert speed is not None and (speed.tokens_per_second, speed.device) == (50.0, "cpu")
    assert measured_speed(tmp_path, "tiny", "c3po", "t") is None
    assert measured_speed(tmp_path / "none", "tiny", "roe", "t") is None


def test_a_pilot_counts_where_no_run_is_stored(tmp_path):
    store(tmp_path / "pilots", "b", "roe", 5.0, written=2)
    assert measured_speed(tmp_path, "tiny", "roe", "t") == Speed(5.0, "cpu")
    assert measured_speed(tmp_path, "tiny", "base", "t") is None
    store(tmp_path, "a", "roe", 100.0, written=1)
    assert measured_speed(tmp_path, "tiny", "roe", "t") == Speed(100.0, "cpu")
