"""Breaks if two processes work on one run, or if an unfinished or foreign result is returned.

Work that is done once. Broken by: a record of another id that is taken, a record without
its files, work that is lost.

Breaks if a lock is acquired twice, or if asking whether a file is locked keeps it locked.

Breaks if a damaged file passes for a whole one, ends in a traceback, or is lost when it is made
again; if a file can be half written, or if NaN gets into JSON.

Types of stored content. Broken by a wrong type that a reader would meet, and by a
right one that is refused.

Breaks if a stored result says other things of its tasks than its configuration does.
"""

import copy
import errno
import json
import multiprocessing
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from moe_lab.errors import ConfigError, ResultsError, RunHeldError
from moe_lab.results import stored_files as stored
from moe_lab.results.artifact import Artifact
from moe_lab.results.atomic import obey_umask, plain, write_atomically, write_json, writing
from moe_lab.results.folder import ATTEMPT, RunFolder, check_writable
from moe_lab.results.locks import acquire, is_locked
from moe_lab.results.model import RunResult
from moe_lab.results.reading import stored_results
from moe_lab.results.stored_files import (
    DamagedError,
    parsed_once,
    read_lines,
    read_mapping,
    tidy,
    typed,
    whole_mapping,
)
from moe_lab.results.versions import versions
from tests.support.files import files_up_to
from tests.support.stored_results import block_of, result_with, results_of

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
    ("changes", "commit", "own_id"),
    [
        ({}, None, True),
        (OF_COMMIT, "c1", True),
        (OF_COMMIT, "c2", False),
        ({"run_id": "b"}, None, False),
        ({"schema_version": 2}, None, False),
        ({"status": "error"}, None, False),
        *(({key: wrong}, None, False) for key in BLOCKS for wrong in (None, [1])),
    ],
)
def test_a_finished_result_of_this_run_is_returned(tmp_path, changes, commit, own_id):
    assert (finished(tmp_path, **changes).stored(commit) is not None) == own_id


@pytest.mark.parametrize("content", ["", "{", "[]", '{"results": {}}', "null"])
def test_a_damaged_result_is_not(tmp_path, content):
    store = finished(tmp_path)
    (tmp_path / "results.json").write_text(content)
    assert store.stored() is None


def test_a_result_of_the_wrong_shape_is_said(tmp_path, capsys):
    finished(tmp_path, model=[1]).stored()
    message = capsys.readouterr().err
    assert f"{tmp_path}/results.json is damaged" in message
    assert message.endswith("It is not used.\n")


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


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RunHeldError("elsewhere"), ValueError("why"), None]
)
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
    assert store.failure("7") == ("ValueError: why" if failed else None)
    assert store.failure("8") is None


def test_an_output_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        check_writable(str(tmp_path / "file" / "outputs"))
    with (
        pytest.raises(ConfigError, match="cannot be made"),
        RunFolder(tmp_path / "file" / "run", "a").held(),
    ):
        pass


def test_an_output_folder_that_is_not_writable(tmp_path, monkeypatch):
    # root may write anywhere, so chmod cannot show it
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="is not writable"):
        check_writable(str(tmp_path / "outputs"))


def test_other_versions_are_marked():
    now = versions()
    assert result_with(versions=now).version_notes == []
    old = now | {"lm_eval": "0.0.1", "torch": "1.0"}
    assert result_with(versions=old).version_notes == [
        f"made with lm_eval 0.0.1, now {now['lm_eval']}"
    ]


class Pair(Artifact):
    """A record and a file next to it."""

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


def test_what_another_process_made_before_the_lock_was_free_is_not_made_again(
    tmp_path, monkeypatch
):
    folder_pair = pair(tmp_path)
    made = []
    held = RunFolder.held

    def held_later(self):
        monkeypatch.undo()
        pair(tmp_path).load_or_make(maker(folder_pair, made))
        return held(self)

    monkeypatch.setattr(RunFolder, "held", held_later)
    assert folder_pair.load_or_make(maker(folder_pair, made)) == {"id": folder_pair.id, "times": 1}


def test_it_is_made_once_and_again_where_something_is_gone(tmp_path):
    first_pair = pair(tmp_path)
    made = []
    assert first_pair.stored() is None
    assert first_pair.load_or_make(maker(first_pair, made)) == {"id": first_pair.id, "times": 1}
    assert (
        first_pair.load_or_make(maker(first_pair, made))
        == first_pair.stored()
        == {"id": first_pair.id, "times": 1}
    )
    assert not (first_pair.folder / "parts").exists()
    (first_pair.folder / "other").unlink()
    assert first_pair.stored() is None
    assert first_pair.load_or_make(maker(first_pair, made))["times"] == 2
    (first_pair.folder / "record.json").write_text("[]")
    assert first_pair.load_or_make(maker(first_pair, made))["times"] == 3
    other_pair = pair(tmp_path, "b" * 64)
    assert other_pair.stored() is None
    assert other_pair.load_or_make(maker(other_pair, made))["times"] == 4


def test_work_in_progress_stays_where_making_fails(tmp_path):
    folder_pair = pair(tmp_path)

    def fail() -> dict[str, Any]:
        (folder_pair.folder / "parts").mkdir()
        raise MemoryError

    with pytest.raises(MemoryError):
        folder_pair.load_or_make(fail)
    assert (folder_pair.folder / "parts").exists()
    assert folder_pair.stored() is None


def test_another_maker_is_named(tmp_path):
    folder_pair = pair(tmp_path)
    made = []
    message = f"pair is held by process {os.getpid()}"
    with (
        RunFolder(folder_pair.folder, folder_pair.id).held(),
        pytest.raises(RunHeldError, match=message),
    ):
        folder_pair.load_or_make(maker(folder_pair, made))
    assert made == []


def test_a_lock_is_acquired_once_until_it_is_released(tmp_path):
    file = tmp_path / ".lock"
    assert not is_locked(file)
    assert not file.exists()
    lock = acquire(file)
    assert lock is not None
    assert acquire(file) is None
    assert is_locked(file)
    lock.release()
    assert not is_locked(file)
    assert acquire(file) is not None


WRONG = {
    "empty": b"",
    "torn": b'{"a": ',
    "list": b"[]",
    "null": b"null",
    "string": b'"text"',
    "nested": b"[" * 100_000,
    "no UTF-8": b'{"a": "\xff"}',
}


@pytest.mark.parametrize("name", ["results.json", "best.yaml"])
@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG.keys())
def test_a_damaged_file_is_one_message_that_names_it(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedError, match=rf"{name} is damaged: .*Move it away") as raised:
        read_mapping(tmp_path / name)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400
    assert raised.value.exit_code == 2


def test_absent_whole_and_a_folder(tmp_path, capsys):
    path = tmp_path / "results.json"
    assert read_mapping(path) is None
    assert read_lines(path) is None
    path.write_text('{"a": 1}')
    assert read_mapping(path) == {"a": 1} == whole_mapping(path)
    assert read_lines(path) == [{"a": 1}]
    (tmp_path / "x.json").mkdir()
    for read in (read_mapping, read_lines):
        with pytest.raises(DamagedError, match="Is a directory"):
            read(tmp_path / "x.json")
    assert whole_mapping(tmp_path / "x.json") is None
    assert whole_mapping(tmp_path / "x.json") is None
    assert capsys.readouterr().err.count("x.json is damaged: Is a directory. It is not used.") == 1


def test_a_file_is_parsed_once_until_it_is_replaced(tmp_path, monkeypatch):
    parsed = []
    loads = json.loads

    def counted(text, **keys):
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(stored.json, "loads", counted)
    path = tmp_path / "results.json"
    assert parsed_once(path) is None
    for number in (1, 2):  # within one tick of the clock: the inode alone differs
        write_json(path, {"a": number})
        assert parsed_once(path) == {"a": number} == parsed_once(path)
    assert len(parsed) == 2
    path.unlink()
    assert parsed_once(path) is None


@pytest.mark.parametrize("line", [b"[]", b"null", b'{"a"', b"[" * 100_000, b'{"a": "\xe9"}'])
def test_a_damaged_line_is_not_skipped(tmp_path, line):
    (tmp_path / "log.jsonl").write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(DamagedError, match=r"log\.jsonl is damaged"):
        read_lines(tmp_path / "log.jsonl")


def test_a_held_folder_is_tidied(tmp_path):
    whole = {"results.json": "{}", "samples_t.jsonl": "torn", ".lock": "", "status.json": "["}
    for name, content in whole.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "expert_metrics").mkdir()
    for stale in (".status.json.a1b2c3_4", "expert_metrics/.counts.safetensors.abcdefgh"):
        (tmp_path / stale).write_text("half")
    tidy(tmp_path)
    assert {path.name for path in tmp_path.rglob("*")} == {*whole, "expert_metrics"}


def changed(**changes: Any) -> dict[str, Any]:
    results = copy.deepcopy(results_of().content)
    results["moe_lab"] |= changes
    return results


@pytest.mark.parametrize(
    ("results", "place"),
    [
        (changed(model={"name": None}), "moe_lab.model.name"),
        (changed(samples={"t": ["0"]}), "moe_lab.samples.t.0"),
        (changed(baseline={"run_id": 5}), "moe_lab.baseline.run_id"),
        (changed(intervals={"t": {"acc,none": [0.1]}}), "moe_lab.intervals.t.acc,none.1"),
        (results_of().content | {"group_subtasks": {"g": "t"}}, "group_subtasks.g"),
        (results_of().content, None),
        (changed(other=5), None),
        (changed(intervals={"t": {"acc,none": [0.1, float("nan")]}}), None),
    ],
)
def test_what_readers_would_meet_is_named(tmp_path, results, place):
    file = tmp_path / "results.json"
    if place is None:
        stored = stored_results(results, file)
        assert isinstance(stored, RunResult)
        assert stored.lm_eval.results == results["results"]
    else:
        with pytest.raises(DamagedError, match=rf"results\.json is damaged: {place}: "):
            stored_results(results, file)


@dataclass(frozen=True)
class Part:
    name: str
    limits: tuple[float, float] | None = None
    length: int = field(init=False, default=0)


@dataclass(frozen=True)
class Whole:
    parts: list[Part]
    by_name: dict[str, Part | None]
    marks: tuple[str, ...] = ()


def test_what_a_dataclass_holds_is_read_with_it():
    part = {"name": "a", "limits": [0, 0.5], "length": 3, "unknown": 1}
    content = {
        "parts": [part],
        "by_name": {"b": {"name": "b"}, "c": None},
        "marks": ["x", "y"],
        "more": None,
    }
    value = typed(Whole, content)
    assert value == Whole([Part("a", (0, 0.5))], {"b": Part("b"), "c": None}, ("x", "y"))


@pytest.mark.parametrize(
    ("choices", "form"),
    [({"a": "letters", "b": "letters"}, "letters"), ({"a": "letters"}, "letters"), ({}, "text")],
)
def test_a_group_was_asked_in_letters_if_a_task_of_it_was(choices, form):
    """A group may hold tasks without choices, too."""
    content: dict[str, Any] = {
        "group_subtasks": {"group": ["a", "b"]},
        "configs": {task: {"doc_to_choice": choices.get(task)} for task in ("a", "b")},
        "results": {},
        "moe_lab": block_of(samples={"a": [0], "b": [0]}),
    }
    assert RunResult(content).answer_form("group") == form
    assert RunResult(content).answer_form("b") == ("letters" if "b" in choices else "text")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, step):
    file = tmp_path / "results.json"
    write_atomically(file, "old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(
        ResultsError, match=r"results\.json could not be written: No space left on device"
    ):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"], (
        "no temporary file is left"
    )


WRITERS = {
    "bytes": lambda path: path.write_bytes(bytes(100_000)),
    "safetensors": lambda path: save_file({"a": torch.zeros(25_000)}, path),
    "torch, opened by Python": lambda path: torch.save(torch.zeros(25_000), path.open("wb")),
    "torch": lambda path: torch.save(torch.zeros(25_000), path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_of_a_file_that_cannot_be_written_ends_in_its_name(writer, tmp_path):
    path = tmp_path / "model.safetensors"
    reason = r"torch\.save failed" if writer == "torch" else "File too large"
    with (
        files_up_to(50_000),
        pytest.raises(ResultsError, match=f"model.safetensors could not be written: {reason}"),
        writing(path),
    ):
        WRITERS[writer](path)


def test_other_errors_while_something_is_written_are_not_errors_of_writing(tmp_path):
    with pytest.raises(RuntimeError, match="a defect"), writing(tmp_path):
        raise RuntimeError("a defect")


def test_json_holds_no_nan(tmp_path):
    odd = {"a": float("nan"), "b": [np.float32("inf"), np.int64(3)], "c": {1}, 4: print}
    write_json(tmp_path / "x.json", odd)
    content = json.loads(
        (tmp_path / "x.json").read_text(), parse_constant=lambda name: pytest.fail(name)
    )
    assert content == {"a": None, "b": [None, 3], "c": [1], "4": "builtins.print"}
    assert plain((True, None, "x", np.bool_(True))) == [True, None, "x", True]
    assert plain([write_json, object()]) == ["moe_lab.results.atomic.write_json", "<object object>"]


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_files_obey_the_umask(tmp_path, mask, mode):
    """Broken by a mode of one's own, new or again."""
    file = tmp_path / "results.json"
    before = os.umask(mask)
    try:
        for content in ("new", "again"):
            write_atomically(file, content)
            assert file.stat().st_mode & 0o777 == mode
        save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
        obey_umask(tmp_path)
        assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == mode
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        os.umask(before)
