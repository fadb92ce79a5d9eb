"""Breaks if a damaged file passes for a whole one, ends in a traceback, or is lost when it is made again.

Types of stored content. Broken by a wrong type that a reader would meet, and by a right one that is refused.

Breaks if a stored result says other things of its tasks than its configuration does.

Breaks if a file can be half written, or if NaN gets into JSON.
"""

import copy
import errno
import json
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from moe_lab.errors import ResultsError
from moe_lab.results import stored_files as stored
from moe_lab.results.atomic import obey_umask, plain, write_atomically, write_json
from moe_lab.results.model import RunResult, stored_results
from moe_lab.results.stored_files import (
    DamagedError,
    parsed_once,
    read_lines,
    read_mapping,
    tidy,
    typed,
    whole_mapping,
)
from tests.support.stored_results import block_of, results_of

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
    with pytest.raises(DamagedError, match=rf"{name} is damaged: .*Move it away") as found:
        read_mapping(tmp_path / name)
    assert "\n" not in str(found.value) and len(str(found.value)) < 400
    assert found.value.exit_code == 2


def test_absent_whole_and_a_folder(tmp_path, capsys):
    path = tmp_path / "results.json"
    assert read_mapping(path) is None and read_lines(path) is None
    path.write_text('{"a": 1}')
    assert read_mapping(path) == {"a": 1} == whole_mapping(path) and read_lines(path) == [{"a": 1}]
    (tmp_path / "x.json").mkdir()
    for read in (read_mapping, read_lines):
        with pytest.raises(DamagedError, match="Is a directory"):
            read(tmp_path / "x.json")
    assert whole_mapping(tmp_path / "x.json") is None and whole_mapping(tmp_path / "x.json") is None
    assert capsys.readouterr().err.count("x.json is damaged: Is a directory. It is not used.") == 1


def test_a_file_is_parsed_once_until_it_is_replaced(tmp_path, monkeypatch):
    parsed = []
    loads = json.loads
    monkeypatch.setattr(stored.json, "loads", lambda text, **keys: parsed.append(text) or loads(text))
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
        assert stored_results(results, file).results == results["results"]
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
    content = {"parts": [part], "by_name": {"b": {"name": "b"}, "c": None}, "marks": ["x", "y"], "more": None}
    found = typed(Whole, content)
    assert found == Whole([Part("a", (0, 0.5))], {"b": Part("b"), "c": None}, ("x", "y"))


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
    with pytest.raises(ResultsError, match=r"results\.json could not be written: No space left on device"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["results.json"], "no temporary file is left"


def test_json_holds_no_nan(tmp_path):
    odd = {"a": float("nan"), "b": [np.float32("inf"), np.int64(3)], "c": {1}, 4: print}
    write_json(tmp_path / "x.json", odd)
    content = json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content == {"a": None, "b": [None, 3], "c": [1], "4": "builtins.print"}
    assert plain((True, None, "x", np.bool_(True))) == [True, None, "x", True]
    assert plain([write_json, object()]) == ["moe_lab.results.atomic.write_json", "<object object>"]


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_files_obey_the_umask(tmp_path, mask, mode):
    """Broken by a mode of one's own, new or again."""
    file, before = tmp_path / "results.json", os.umask(mask)
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
