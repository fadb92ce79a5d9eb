"""Breaks if variables that a cluster has left in the environment end a command in a traceback,
or let it wait in silence for processes that never come.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moe_lab.errors import ConfigError
from moe_lab.runs import distributed
from tests.support.command import run_command

PLAN = ["method=base", "model=tiny", "task=toy_choice", "limit=2"]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def rank_alone(monkeypatch, port):
    """The environment of process 0 of four, without the other three."""
    variables = {
        "WORLD_SIZE": "4",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(distributed, "ANNOUNCED_AFTER", 0.3)


def test_an_empty_number_of_processes_is_one(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WORLD_SIZE", "")
    assert run_command(capsys, *PLAN, f"output_dir={tmp_path}").code == 0


@pytest.mark.parametrize("size", ["4", "-1", "many"])
def test_a_number_without_a_launch_is_one_message(monkeypatch, tmp_path, capsys, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    ended = run_command(capsys, *PLAN, f"output_dir={tmp_path}")
    assert ended.code == 2
    assert f"WORLD_SIZE={size} is" in ended.err
    assert "unset WORLD_SIZE" in ended.err
    assert "Traceback" not in ended.err
    assert ended.err.count("\n") <= 3


def test_processes_that_never_come_are_waited_for_aloud_and_not_for_ever(
    rank_alone, tmp_path, capsys, port
):
    ended = run_command(capsys, *PLAN, "distributed.timeout=1", f"output_dir={tmp_path}")
    assert ended.code == 2
    assert f"Process 0 waits: 1 of 4 processes have joined at 127.0.0.1:{port}" in ended.err
    assert "(distributed.timeout=1)" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.slow
def test_a_process_that_reaches_nobody_gives_up_too(rank_alone, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError, match="Only 0 of 4 processes have joined"):
        distributed.joined_store(1, 4, timeout=1)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_waiting(rank_alone, heeding_signals, tmp_path, number, code):
    command = [sys.executable, "-m", "moe_lab", *PLAN, f"output_dir={tmp_path}"]
    folder = Path(__file__).parents[2]
    process = subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    for line in process.stderr:
        if "Process 0 waits" in line:
            break
    start = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert time.monotonic() - start < 10
