"""Measured speeds. Broken by the speed of another model, method or task, of an older run, of a damaged file, or of a
pilot where a run is stored."""

from __future__ import annotations

import os

import pytest

from moe_lab.runs.speeds import Speed, measured_speed, store_pilot
from tests.support.stored_runs import generated_line, stored_run


def store(output, run_id: str, method: str, speed: float | None, written: int, task: str = "t") -> None:
    cost = {"tokens_per_second": speed, "device": "cpu"}
    run = stored_run(output, run_id * 64, [generated_line(0, ("a", 1.0))], method, task=task, cost=cost)
    folder = run.stored_in.rename(run.stored_in.parent / f"tiny-{method}-{task}-{run_id * 8}")
    os.utime(folder, (written, written))


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
    assert speed.hours(50 * 3600 * 2) == pytest.approx(2.0)
    assert measured_speed(tmp_path, "tiny", "c3po", "t") is None
    assert measured_speed(tmp_path / "none", "tiny", "roe", "t") is None


def test_a_pilot_counts_where_no_run_is_stored(tmp_path):
    store_pilot(tmp_path, "tiny", "roe", "t", Speed(5.0, "cuda:0"))
    assert measured_speed(tmp_path, "tiny", "roe", "t") == Speed(5.0, "cuda:0")
    assert measured_speed(tmp_path, "tiny", "base", "t") is None
    store(tmp_path, "a", "roe", 100.0, written=1)
    assert measured_speed(tmp_path, "tiny", "roe", "t") == Speed(100.0, "cpu")
