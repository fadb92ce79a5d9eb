"""`moe_lab.compare` is mode=compare. Broken by other numbers than those of comparison.json."""

from __future__ import annotations

import json

import pytest

import moe_lab
from moe_lab.errors import ConfigError
from tests.support.lm_eval_logs import samples_of, write_log

MINE, THEIRS = samples_of(acc=[0.0, 0.0, 0.0, 1.0]), samples_of(acc=[1.0, 1.0, 0.0, 0.0])


def test_the_rows_are_those_of_the_file(tmp_path):
    for name, lines in (("mine", MINE), ("theirs", THEIRS), ("same", MINE)):
        write_log(tmp_path / name, {"t": lines})
    found = moe_lab.compare(
        tmp_path / "mine", str(tmp_path / "theirs"), tmp_path / "same", output_dir=tmp_path
    )
    frame, rows = found.frame(), json.loads(found.file.read_text())["scores"]
    assert list(frame["other"]) == ["b1", "b2"] == [row["other"] for row in rows] and len(found) == 2
    assert list(frame["p_holm"]) == [row["p_holm"] for row in rows]
    assert list(frame["to_right"]) == [2, 0] and list(frame["difference"]) == [0.25, 0.0]
    assert found.page.suffix == ".html" and found.page.exists()
    assert "b1: " in repr(found) and "p (Holm)" in found._repr_html_()


def test_other_examples_are_refused(tmp_path):
    write_log(tmp_path / "mine", {"t": MINE})
    write_log(tmp_path / "theirs", {"u": THEIRS})
    with pytest.raises(ConfigError, match="no task in common"):
        moe_lab.compare(tmp_path / "mine", tmp_path / "theirs", output_dir=tmp_path)
