"""Breaks if a result is read as another one, or a broken one passes.

Breaks if a comparison reads other files than those that were named.
"""

import json

import pytest

from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.evaluation import lm_eval_samples, read_evaluation, results_file
from moe_lab.results.samples import Sample
from moe_lab.results.stored_files import DamagedError
from tests.support.lm_eval_logs import DATE, LATER, samples_of, write_log

LINES = samples_of(acc=[1.0, 0.0])


def test_a_result_of_lm_eval(tmp_path):
    better = {"t": {"acc": False}}
    arguments = {"model_args": {"pretrained": "/models/mine/", "dtype": "float32"}}
    file = write_log(
        tmp_path, {"t": LINES}, model_name="/models/mine/", higher_is_better=better, config=arguments
    )
    found = read_evaluation("b", tmp_path)
    assert (found.key, found.label, found.file) == ("b", "mine", file)
    assert found.settings == "pretrained=/models/mine/,dtype=float32"
    assert found.samples == {"t": list(map(Sample.of, LINES))}
    assert found.results.scores("t")["acc,none"] == 0.5
    assert found.results.better("t", "acc,none") is False
    assert found.results.better("t", "f1,none") is None


def test_a_run_of_this_package(tmp_path):
    file = write_log(tmp_path, {"t": LINES})
    results = json.loads(file.read_text())
    block = {"model": {"name": "tiny"}, "method": {"name": "roe"}, "samples": {"t": [0, 1]}}
    block |= {"run_id": "r", "task": {"name": "t", "tasks": ["t"]}, "versions": {}}
    block["overrides"] = ["method.n=8", "limit=2"]
    (tmp_path / "results.json").write_text(json.dumps(results | {"moe_lab": block}))
    (tmp_path / f"samples_t_{DATE}.jsonl").rename(tmp_path / "samples_t.jsonl")
    found = read_evaluation("a", tmp_path)
    assert (found.label, found.samples) == ("tiny-roe", {"t": list(map(Sample.of, LINES))})
    assert found.settings == "method.n=8 limit=2"


def test_a_summary_over_seeds_and_other_files_are_refused(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"run_ids": ["0123456789"], "scores": {}}))
    with pytest.raises(ConfigError, match=r"no result of lm-eval or moe_lab. Give the folder of a run"):
        read_evaluation("a", tmp_path / "x.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "it is empty"), ('{"doc_id": 0}\n', "lines lack doc_hash, filter, metrics"), ("{", "damaged")],
)
def test_a_broken_sample_log(tmp_path, text, reason):
    write_log(tmp_path, {"t": LINES})
    (tmp_path / f"samples_t_{DATE}.jsonl").write_text(text)
    with pytest.raises(DamagedError, match=reason):
        read_evaluation("a", tmp_path)


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


def test_results_in_several_folders_are_named(tmp_path):
    for name in ("one", "two"):
        write_log(tmp_path / name, ONE)
    with pytest.raises(ConfigError, match=f"in 2 folders.*a={tmp_path}/one"):
        results_file("a", tmp_path)


def test_no_results(tmp_path):
    write_log(tmp_path / "one", ONE)
    for path in (tmp_path / "two", tmp_path / "one" / f"samples_t_{DATE}.jsonl"):
        with pytest.raises(ConfigError, match="has no results"):
            results_file("a", path)


def test_samples_that_are_missing_or_unknown(tmp_path):
    file = write_log(tmp_path, ONE)
    with pytest.raises(ConfigError, match="--log_samples"):
        lm_eval_samples(file, "u")
    with pytest.raises(ConfigError, match="results_<date>.json"):
        lm_eval_samples(tmp_path / "renamed.json", "t")
