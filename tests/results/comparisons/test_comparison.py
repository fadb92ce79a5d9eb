"""Breaks if rows are corrected for another number than theirs, or if a difference between the evaluations is not said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moe_lab.errors import ConfigError
from moe_lab.results.atomic import plain
from moe_lab.results.comparisons.comparison import compare
from moe_lab.results.significance import holm
from tests.support.lm_eval_logs import evaluation, samples_of

ZEROS, ONES = samples_of(acc=[0.0] * 12), samples_of(acc=[1.0] * 12)
HALF = samples_of(acc=[0.0, 1.0] * 6)


def test_all_rows_of_the_command_are_corrected_together(tmp_path: Path) -> None:
    a = evaluation(tmp_path, "a", {"t": ZEROS, "u": HALF})
    b1 = evaluation(tmp_path, "b1", {"t": ONES, "u": HALF})
    b2 = evaluation(tmp_path, "b2", {"t": HALF, "u": HALF})
    scores = compare([a, b1, b2]).scores
    assert [(score.run_id, score.task) for score in scores] == [
        ("b1", "t"),
        ("b1", "u"),
        ("b2", "t"),
        ("b2", "u"),
    ]
    assert [score.p for score in scores] == pytest.approx([2 / 2**12, 1, 2 / 2**6, 1])
    assert [score.p_holm for score in scores] == pytest.approx(holm([score.p for score in scores]))
    assert [score.significant for score in scores] == [True, False, False, False]
    alone = compare([a, b2]).scores[0]
    assert alone.p_holm == pytest.approx(2 * alone.p)


def test_what_differs_is_said(tmp_path: Path) -> None:
    a = evaluation(tmp_path, "a", {"t": ZEROS, "u": HALF}, **{"n-samples": {"t": {"original": 40}}})
    b = evaluation(tmp_path, "b", {"t": ONES, "v": HALF}, versions={"t": 2, "v": 1}, lm_eval_version="0.4.12")
    assert compare([a, b]).notes == [
        "Only in a, and not compared: u.",
        "Only in b, and not compared: v.",
        "a was made with lm_eval 0.4.13, b with 0.4.12.",
        "t is version 1 in a and 2 in b.",
        "t: 12 of 40 documents (PARTIAL); not the benchmark's number.",
    ]


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    a = evaluation(tmp_path, "a", {"t": ZEROS})
    with pytest.raises(ConfigError, match=r"no task in common: t in .*, u in "):
        compare([a, evaluation(tmp_path, "b", {"u": ONES})])
    with pytest.raises(ConfigError, match="no score in common"):
        compare([a, evaluation(tmp_path, "c", {"t": samples_of(f1=[0.5] * 12)})])


def test_the_content_is_plain_json(tmp_path: Path) -> None:
    a, b = evaluation(tmp_path, "a", {"t": ZEROS}), evaluation(tmp_path, "b", {"t": HALF})
    content = plain(compare([a, b]))
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    [row] = content["scores"]
    assert row["flips"]["to_right"] == [1, 3, 5, 7, 9, 11]
    assert row["verdict"] == "better"
    assert content["evaluations"][1]["samples"] == {"t": str(b.samples_files["t"])}
