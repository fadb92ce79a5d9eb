"""Breaks if a result is read as another one, or a broken one passes."""

from __future__ import annotations

import json

import pytest

from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.evaluation import read_evaluation
from moe_lab.results.samples import Sample
from moe_lab.results.stored_files import DamagedError
from tests.support.lm_eval_logs import DATE, samples_of, write_log

LINES = samples_of(acc=[1.0, 0.0])


def test_a_result_of_lm_eval(tmp_path):
    better = {"t": {"acc": False}}
    arguments = {"model_args": {"pretrained": "/models/mine/", "dtype": "float32"}}
    file = write_log(
        tmp_path,
        {"t": LINES},
        model_name="/models/mine/",
        higher_is_better=better,
        config=arguments,
    )
    found = read_evaluation("b", tmp_path)
    assert (found.key, found.label, found.file) == ("b", "mine", file)
    assert found.settings == "pretrained=/models/mine/,dtype=float32"
    assert found.samples == {"t": list(map(Sample.of, LINES))}
    assert found.scores("t")["acc,none"] == 0.5
    assert found.higher_is_better("t", "acc,none") is False
    assert found.higher_is_better("t", "f1,none") is None


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


def test_a_summary_over_seeds_names_its_runs(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"run_ids": ["0123456789", "abcdefghij"], "scores": {}}))
    with pytest.raises(ConfigError, match=r"summary over seeds.*\*-01234567 \*-abcdefgh"):
        read_evaluation("a", tmp_path / "x.json")


def test_another_json_file(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ConfigError, match="no result of lm-eval or moe_lab"):
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
