"""Breaks if a run that another process holds is not waited for, or if a worker makes what another one made or failed at."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from moe_lab.config.schema import Config
from moe_lab.errors import ResultsError, RunHeldError
from moe_lab.methods import get_method
from moe_lab.models.memory import ModelPool
from moe_lab.results.folder import ATTEMPT, RunFolder
from moe_lab.runs import attempts
from moe_lab.runs.jobs import Job
from tests.support.command import FakeRun, FakeRuns, install, run_command

GRID = ("-m", "seed=0,1,2")
HELD = "tiny-roe-toy_math-1"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuns:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attempts, "PAUSE", 0.0)
    return install(monkeypatch, FakeRuns())


def held_for(runs: FakeRuns, times: int, monkeypatch: pytest.MonkeyPatch, *, done: bool) -> None:
    """Another process holds a run at so many looks, and then has made it, or has died."""
    looks = []

    def check_free(run: FakeRun) -> None:
        if run.run_id == HELD and len(looks) < times:
            looks.append(run)
            raise RunHeldError(f"{HELD} is held by process 7")
        if run.run_id == HELD and done:
            runs.done.add(HELD)

    monkeypatch.setattr(FakeRun, "check_free", check_free)


@pytest.mark.parametrize("done", [True, False], ids=["made by the other", "taken over"])
def test_what_another_process_holds_is_waited_for_last(done, capsys, runs, monkeypatch):
    held_for(runs, 5, monkeypatch, done=done)
    ended = run_command(capsys, *GRID)
    assert ended.code == 0
    own = ["tiny-roe-toy_math-0", "tiny-roe-toy_math-2"]
    assert runs.executed == (own if done else [*own, HELD])
    assert ended.err.count(f"Waiting: {HELD} is held by process 7") == 1
    assert "seed=1" in ended.out, "its result is in the table"


def test_without_waiting_it_is_left_out(capsys, runs, monkeypatch):
    held_for(runs, 5, monkeypatch, done=True)
    ended = run_command(capsys, *GRID, "wait=false")
    assert ended.code == RunHeldError.exit_code and "Waiting" not in ended.err
    assert "seed=1" not in ended.out and len(runs.executed) == 2


def fail(folder: Path, error: Exception) -> None:
    """A run that fails in this process."""
    folder.mkdir(parents=True)
    with suppress(type(error)), RunFolder(folder, "x").status():
        raise error


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process belongs to a command with workers."""
    monkeypatch.setenv(ATTEMPT, "1")


def test_a_worker_leaves_out_what_others_made_and_failed_at(capsys, runs, attempt, monkeypatch):
    monkeypatch.setenv(attempts.WORKER, "1")
    fail(Path("outputs/runs/tiny-roe-toy_math-0"), ResultsError("full"))
    runs.done.add(HELD)
    ended = run_command(capsys, *GRID)
    assert runs.executed == ["tiny-roe-toy_math-2"] and not runs.summarized
    assert ended.code == 0 and ended.out == "", "its command writes the tables and tells of failures"


def test_what_failed_in_a_worker_is_shown_and_tried_again_later(capsys, runs, attempt, monkeypatch):
    fail(Path("outputs/runs") / HELD, ResultsError("the disk is full"))
    ended = run_command(capsys, *GRID)
    assert ended.code == 1 and f"{HELD}:\nError: the disk is full\n" in ended.err
    assert runs.executed == ["tiny-roe-toy_math-0", "tiny-roe-toy_math-2"]
    for other in ("2", None):  # another command with workers, and one without
        if other:
            monkeypatch.setenv(ATTEMPT, other)
        else:
            monkeypatch.delenv(ATTEMPT)
        runs.done.discard(HELD)
        assert run_command(capsys, *GRID).code == 0 and runs.executed.pop() == HELD


def test_a_worker_ends_with_its_failures(capsys, runs, attempt, monkeypatch):
    monkeypatch.setenv(attempts.WORKER, "1")
    runs.errors[HELD] = ResultsError("the disk is full")
    ended = run_command(capsys, *GRID)
    assert ended.code == 1 and "Error: the disk is full" in ended.err and len(runs.executed) == 2


def test_what_a_run_waits_for_is_looked_at_before_it_is_tried_again(capsys, runs, tmp_path):
    """Its training, say, which is found out late, while the run is executed."""
    training = RunFolder(tmp_path / "training", "x")
    execute, tries = runs.execute, []

    def busy(run: FakeRun, models: Any, **_: Any) -> Any:
        if run.run_id == HELD:
            tries.append(run)
            if len(tries) == 1:
                raise RunHeldError("its training is held", training.path)
        return execute(run, models)

    looks = iter([True] * 5 + [False])
    runs.execute = busy  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        install(patch, runs)
        patch.setattr(RunFolder, "is_held", lambda folder: folder.path == training.path and next(looks))
        ended = run_command(capsys, *GRID)
    assert ended.code == 0 and len(tries) == 2 and next(looks, None) is None
    assert runs.executed[-1] == HELD and ended.err.count(HELD) == 1, "it is announced once"


def test_workers_leave_what_is_timed_to_their_command(capsys, runs, monkeypatch):
    configs = [Config(method=get_method("roe").Config(name="roe"), seed=seed) for seed in (0, 1)]
    jobs = [Job(one, runs=[runs.prepare(one)], timed=one.seed == 1) for one in configs]
    with monkeypatch.context() as patch:
        patch.setenv(attempts.WORKER, "1")
        attempts.run_all(jobs, ModelPool())
    assert runs.executed == ["tiny-roe-toy_math-0"]
    outcomes, failures = attempts.run_all(jobs, ModelPool())
    assert len(outcomes) == 2 and not failures and runs.executed[1:] == ["tiny-roe-toy_math-1"]
    assert "[2/2] tiny-roe-toy_math-1" in capsys.readouterr().err
