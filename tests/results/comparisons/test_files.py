"""Breaks if a comparison reads other files than those that were named."""

from __future__ import annotations

import pytest

from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.evaluation import lm_eval_samples, results_file
from tests.support.lm_eval_logs import DATE, LATER, samples_of, write_log

ONE = {"t": samples_of(acc=[1.0])}


def test_a_file_and_the_folders_around_it_mean_the_same(tmp_path):
    file = write_log(tmp_path / "out" / "org__model", ONE)
    for path in (file, file.parent, tmp_path / "out"):
        assert results_file("a", path) == file


def test_a_file_of_ones_own_name(tmp_path):
    """`--output_path mine.json` becomes mine_<date>.json."""
    file = write_log(tmp_path, ONE)
    mine = file.rename(tmp_path / f"mine_{DATE}.json")
    assert results_file("a", tmp_path) == mine
    assert lm_eval_samples(mine, "t") == tmp_path / f"samples_t_{DATE}.jsonl"


def test_the_newest_of_several_is_taken_and_said(tmp_path, capsys):
    write_log(tmp_path, ONE)
    newest = write_log(tmp_path, ONE, date=LATER)
    assert results_file("b", tmp_path) == newest
    assert capsys.readouterr().err == f"b={newest} is the newest of 2 results there.\n"


def test_a_runs_folder(tmp_path):
    (tmp_path / "results.json").write_text("{}")
    assert results_file("a", tmp_path) == tmp_path / "results.json"


def test_results_in_several_folders_are_named(tmp_path):
    for name in ("one", "two"):
        write_log(tmp_path / name, ONE)
    with pytest.raises(ConfigError, match=f"in 2 folders.*\n  a={tmp_path}/one\n  a={tmp_path}/two"):
        results_file("a", tmp_path)


def test_no_results(tmp_path):
    with pytest.raises(ConfigError, match="has no results"):
        results_file("a", tmp_path)
    with pytest.raises(ConfigError, match="no such file or folder"):
        results_file("a", tmp_path / "gone")
    write_log(tmp_path, ONE)
    with pytest.raises(ConfigError, match="is no results file"):
        results_file("a", tmp_path / f"samples_t_{DATE}.jsonl")


def test_samples_that_are_missing_or_unknown(tmp_path):
    file = write_log(tmp_path, ONE)
    with pytest.raises(ConfigError, match="--log_samples"):
        lm_eval_samples(file, "u")
    with pytest.raises(ConfigError, match="does not end in lm-eval's date"):
        lm_eval_samples(tmp_path / "renamed.json", "t")
