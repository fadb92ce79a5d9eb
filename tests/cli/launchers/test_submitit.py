"""Breaks if jobs of submitit change a number, are not queued again, or if a wrong parameter gives a traceback."""

from __future__ import annotations

import importlib.util
import json
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

from moe_lab.cli.launchers.submitit import Requeued
from tests.support.command import run_command

GRID = ("-m", "method=roe", "method.n=2", "seed=0,1", "task=toy_choice", "limit=3")
HAS_RAY = importlib.util.find_spec("ray") is not None


def scores(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("runs/*/results.json"))
    return {file.parent.name: json.loads(file.read_text())["results"] for file in files}


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ("launcher=submitit", "launcher.cluster=local"),
        pytest.param(
            ("launcher=ray", "+launcher.parameters.num_cpus=0.5"),
            marks=pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed"),
        ),
    ],
    ids=lambda launcher: launcher[0],
)
def test_workers_make_what_one_process_makes(launcher, capsys, tmp_path):
    shared, plain = tmp_path / "shared", tmp_path / "plain"
    own = signal.getsignal(signal.SIGTERM)
    workers = run_command(capsys, *GRID, *launcher, "launcher.workers=2", f"output_dir={shared}")
    signal.signal(signal.SIGTERM, own)  # Ray has one of its own
    alone = run_command(capsys, *GRID, f"output_dir={plain}")
    assert workers.code == alone.code == 0, workers.err
    assert scores(shared) == scores(plain) and len(scores(plain)) == 3
    assert workers.out.partition("\nCost")[0] == alone.out.partition("\nCost")[0]
    assert not list((shared / "workers").iterdir()), "no worker failed"


def test_a_job_is_queued_again_as_it_is(tmp_path):
    worker = pickle.loads(pickle.dumps(Requeued(tmp_path, ["method=roe"])))
    again = worker.checkpoint(3)
    assert again.function is worker and again.args == (3,)
    assert (worker.folder, worker.argv) == (tmp_path, ["method=roe"])


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["launcher=submitit", "launcher.cluster=pbs"], "pbs"),
        (["launcher=submitit", "launcher.cluster=local", "+launcher.parameters.cpus=2"], "cpus"),
        (["launcher=local", "launcher.cluster=slurm"], "belongs to launcher=submitit"),
        (["launcher=local", "launcher.address=auto"], "belongs to launcher=ray"),
    ],
)
def test_a_wrong_parameter_is_refused(typed, expected, capsys, tmp_path):
    ended = run_command(capsys, *typed, f"output_dir={tmp_path}")
    assert ended.code == 2 and expected in ended.err and "Traceback" not in ended.err
