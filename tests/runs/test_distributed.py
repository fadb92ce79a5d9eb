"""Processes of torchrun.

Broken by: processes that wait for each other, and hold their memory, after torchrun was killed.
"""

import multiprocessing
import os
import signal
import time
import weakref
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from moe_lab.cli.main import _terminate
from moe_lab.config.schema import Config, ModelConfig
from moe_lab.methods import get_method
from moe_lab.models.memory import ModelPool
from moe_lab.runs import distributed, parent
from tests.support.ranks import PROCESSES, fork_ranks


def wait_for_ever(folder: Path) -> None:
    """Process 1 waits for a call of process 0, which waits for a number of process 1.

    Neither process reads a signal.
    """
    signal.signal(signal.SIGTERM, _terminate)
    rank = os.environ["RANK"]
    (folder / rank).write_text(str(os.getpid()))
    method = get_method("base")
    if distributed.follow([Config(method=method.Config(name="base"))]) is None:
        (folder / "waits").touch()
        dist.recv(torch.zeros(1), src=1)


def is_running(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(happened, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def test_a_process_without_others_frees_its_model(tiny_olmoe_dir):
    """Broken by a model that stays in memory next to a judge, or to a training."""
    models = ModelPool()
    config = Config(model=ModelConfig(path=str(tiny_olmoe_dir)), device="cpu")
    model = weakref.ref(models.get(config).model)
    assert model() is not None
    distributed.free_on_all_ranks(models)
    assert model() is None


@pytest.mark.slow
def test_processes_end_when_torchrun_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(parent, "GRACE", 1.0)
    fork = multiprocessing.get_context("fork")
    keys = {"log": tmp_path / "log", "TORCHELASTIC_RUN_ID": "none"}
    launcher = fork.Process(target=fork_ranks, args=(wait_for_ever, tmp_path), kwargs=keys)
    launcher.start()
    assert wait_until((tmp_path / "waits").exists, 30), (tmp_path / "log").read_text()
    ranks = [int((tmp_path / str(rank)).read_text()) for rank in range(PROCESSES)]
    try:
        assert all(map(is_running, ranks))
        launcher.kill()
        launcher.join()
        assert wait_until(lambda: not any(map(is_running, ranks)), 15)
    finally:
        for process in filter(is_running, ranks):
            os.kill(process, signal.SIGKILL)
