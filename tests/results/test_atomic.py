"""Breaks if a file can be half written, or if NaN gets into JSON."""

import errno
import json
import os
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from moe_lab.errors import ResultsError
from moe_lab.results.atomic import obey_umask, plain, write_atomically, write_json, writing


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


def test_what_torch_and_safetensors_say_of_a_full_disk_is_told_alike(tmp_path):
    said = [
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),  # of tokenizers
        RuntimeError("basic_ios::clear: iostream error"),
    ]
    for error in said:
        with (
            pytest.raises(ResultsError, match="model could not be written: No space left"),
            writing(tmp_path / "model"),
        ):
            raise error
    with pytest.raises(ResultsError, match="written: Input/output error"), writing(tmp_path / "model"):
        raise SafetensorError("Error while serializing: I/O error: Input/output error (os error 5)")
    with pytest.raises(RuntimeError, match="shape"), writing(tmp_path / "model"):
        raise RuntimeError("shape mismatch")


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(ResultsError, match="No such file or directory"):
        write_atomically(tmp_path / "absent" / "x.json", "{}")


def test_json_holds_no_nan(tmp_path):
    write_json(
        tmp_path / "x.json", {"a": float("nan"), "b": [np.float32("inf"), np.int64(3)], "c": {1}, 4: print}
    )
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
