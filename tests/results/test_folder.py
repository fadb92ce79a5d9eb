"""Breaks if two processes work on one run, or if an unfinished or foreign result is returned.

What is made once. Broken by: a record of another id that is taken, a record without its files, work that is lost.

Breaks if a lock is acquired twice, or if asking whether a file is locked keeps it locked.
"""

import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from moe_lab.errors import ConfigError, RunHeldError
from moe_lab.results.folder import ATTEMPT, Artifact, RunFolder, acquire, check_writable, is_locked
from moe_lab.results.identity import versions
from tests.support.stored_results import result_with

BLOCKS = ("model", "method", "task", "versions", "samples", "cost", "intervals")


def finished(folder: Path, **changes: Any) -> RunFolder:
    block = {"run_id": "a", "schema_version": 1, "status": "success"} | {key: {} for key in BLOCKS}
    block |= {"model": {"name": "m", "commit": None}, "method": {"name": "base"}}
    block |= {"task": {"name": "t", "tasks": ["t"]}} | changes
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"results": {}, "moe_lab": block}))
    return RunFolder(folder, "a")


OF_COMMIT = {"model": {"name": "m", "commit": "c1"}}


@pytest.mark.parametrize(
    ("changes", "commit", "own"),
    [
        *(({}, None, True), (OF_COMMIT, "c1", True), (OF_COMMIT, "c2", False)),
        *((other, None, False) for other in ({"run_id": "b"}, {"schema_version": 2}, {"status": "error"})),
        *(({key: wrong}, None, False) for key in BLOCKS for wrong in (None, [1])),
    ],
)
def test_a_finished_result_of_this_run_is_returned(tmp_path, changes, commit, own):
    assert (finished(tmp_path, **changes).stored(commit) is not None) == own


@pytest.mark.parametrize("content", ["", "{", "[]", '{"results": {}}', "null"])
def test_a_damaged_result_is_not(tmp_path, content):
    store = finished(tmp_path)
    (tmp_path / "results.json").write_text(content)
    assert store.stored() is None


def test_a_result_of_the_wrong_shape_is_said(tmp_path, capsys):
    finished(tmp_path, model=[1]).stored()
    said = capsys.readouterr().err
    assert f"{tmp_path}/results.json is damaged" in said and said.endswith("It is not used.\n")


def _hold(folder: Path, ready: Any, seconds: float) -> None:
    store = RunFolder(folder, "a")
    with store.held(), store.status():
        ready.set()
        time.sleep(seconds)


def holder(folder: Path, seconds: float = 60) -> multiprocessing.Process:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hold, args=(folder, ready, seconds))
    process.start()
    assert ready.wait(10)
    return process  # type: ignore[return-value]


@pytest.mark.slow
def test_a_held_run_names_its_holder_and_a_dead_holder_is_taken_over(tmp_path):
    folder = tmp_path / "run"
    process = holder(folder)
    with (
        pytest.raises(RunHeldError, match=rf"run is held by process {process.pid} on "),
        RunFolder(folder, "a").held(),
    ):
        pass
    process.kill()
    process.join()
    with RunFolder(folder, "a").held():
        assert f"process {os.getpid()} on " in (folder / ".holder").read_text()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RunHeldError("elsewhere"), ValueError("why"), None])
def test_only_a_failure_has_a_status(tmp_path, monkeypatch, error):
    monkeypatch.setenv(ATTEMPT, "7")
    store = RunFolder(tmp_path, "a")
    (tmp_path / "status.json").write_text("{}")
    try:
        with store.status():
            if error:
                raise error
    except BaseException as raised:
        assert raised is error
    failed = isinstance(error, ValueError)
    assert (tmp_path / "status.json").exists() == failed
    assert store.failure("7") == ("ValueError: why" if failed else None) and store.failure("8") is None


def test_an_output_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        check_writable(str(tmp_path / "file" / "outputs"))
    with pytest.raises(ConfigError, match="cannot be made"), RunFolder(tmp_path / "file" / "run", "a").held():
        pass


def test_an_output_folder_that_is_not_writable(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere, so chmod cannot show it
    with pytest.raises(ConfigError, match="is not writable"):
        check_writable(str(tmp_path / "outputs"))


def test_other_versions_are_marked():
    now = versions()
    assert result_with(versions=now).version_notes == []
    old = now | {"lm_eval": "0.0.1", "torch": "1.0"}
    assert result_with(versions=old).version_notes == [f"made with lm_eval 0.0.1, now {now['lm_eval']}"]


class Pair(Artifact):
    """A record and a file beside it."""

    def is_whole(self, content: dict[str, Any]) -> bool:
        return (self.folder / "other").exists()


def pair(tmp_path: Path, digest: str = "a" * 64) -> Pair:
    return Pair(folder=tmp_path / "pair", id=digest, record="record.json", scratch="parts")


def maker(artifact: Artifact, made: list[int]):
    def make() -> dict[str, Any]:
        (artifact.folder / "parts").mkdir(exist_ok=True)
        (artifact.folder / "other").touch()
        assert not (artifact.folder / "record.json").exists()
        made.append(1)
        return {"times": len(made)}

    return make


def test_what_another_process_made_before_the_lock_was_free_is_not_made_again(tmp_path, monkeypatch):
    one, made, held = pair(tmp_path), [], RunFolder.held

    def held_later(self):
        monkeypatch.undo()
        pair(tmp_path).load_or_make(maker(one, made))
        return held(self)

    monkeypatch.setattr(RunFolder, "held", held_later)
    assert one.load_or_make(maker(one, made)) == {"id": one.id, "times": 1}


def test_it_is_made_once_and_again_where_something_is_gone(tmp_path):
    one, made = pair(tmp_path), []
    assert one.stored() is None
    assert one.load_or_make(maker(one, made)) == {"id": one.id, "times": 1}
    assert one.load_or_make(maker(one, made)) == one.stored() == {"id": one.id, "times": 1}
    assert not (one.folder / "parts").exists()
    (one.folder / "other").unlink()
    assert one.stored() is None and one.load_or_make(maker(one, made))["times"] == 2
    (one.folder / "record.json").write_text("[]")
    assert one.load_or_make(maker(one, made))["times"] == 3
    other = pair(tmp_path, "b" * 64)
    assert other.stored() is None and other.load_or_make(maker(other, made))["times"] == 4


def test_work_in_progress_stays_where_making_fails(tmp_path):
    one = pair(tmp_path)

    def fail() -> dict[str, Any]:
        (one.folder / "parts").mkdir()
        raise MemoryError

    with pytest.raises(MemoryError):
        one.load_or_make(fail)
    assert (one.folder / "parts").exists() and one.stored() is None


def test_another_maker_is_named(tmp_path):
    one = pair(tmp_path)
    with RunFolder(one.folder, one.id).held(), pytest.raises(RunHeldError):
        one.load_or_make(maker(one, []))


def test_a_lock_is_acquired_once_until_it_is_released(tmp_path):
    file = tmp_path / ".lock"
    assert not is_locked(file) and not file.exists()
    lock = acquire(file)
    assert lock is not None and acquire(file) is None and is_locked(file)
    lock.release()
    assert not is_locked(file) and acquire(file) is not None
