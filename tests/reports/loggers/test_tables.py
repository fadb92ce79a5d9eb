"""Breaks if a score, a mark or a sample is logged under another name or not at all, or if a secret of types slips in."""

from __future__ import annotations

import json
from pathlib import Path

from moe_lab.reports.loggers import tables
from moe_lab.results.model import RunResult
from tests.support.stored_results import RESULTS


def test_scores_have_the_harness_s_names_and_one_headline() -> None:
    assert tables.scores(RESULTS) == {
        "toy/acc,none": 0.5,
        "toy/f1,none": 0.25,
        "toy/f1_stderr,none": 0.1,
        "score": 0.5,
        "difference": 0.1,
        "baseline/toy/acc,none": 0.4,
        "cost/wall_seconds": 2.0,
    }


def test_the_score_of_a_group_is_its_own() -> None:
    block = RESULTS["moe_lab"] | {"task": {"name": "all", "tasks": ["toy"], "metric": "acc,none"}}
    results = RunResult({"results": RESULTS["results"] | {"all": {"acc,none": 0.75}}, "moe_lab": block})
    assert tables.scores(results)["score"] == 0.75
    assert "difference" not in tables.scores(results), "it was compared task by task"


def test_all_notes_are_tags() -> None:
    block = RESULTS["moe_lab"] | {"untuned": True, "c3po": {"upper_bound": True}}
    tagged = tables.marks(RunResult(RESULTS.content | {"moe_lab": block}))
    assert tagged[:3] == ["partial", "untuned", "upper-bound"]


def test_a_sample_is_a_row(tmp_path: Path) -> None:
    line = {
        "doc_id": 3,
        "filter": "none",
        "arguments": {"gen_args_0": {"arg_0": "Q: 1+1?", "arg_1": {}}},
        "target": "2",
        "resps": [["two"]],
        "filtered_resps": ["2"],
        "metrics": ["exact_match"],
        "exact_match": 1.0,
    }
    (tmp_path / "samples_toy.jsonl").write_text(json.dumps(line) + "\n")
    frame = tables.samples(RunResult(RESULTS.content, tmp_path))["samples/toy"]
    names = ["doc_id", "filter", "prompt", "target", "response", "filtered", "exact_match"]
    assert frame.to_dict("split") == {
        "index": [0],
        "columns": names,
        "data": [[3, "none", "Q: 1+1?", "2", "two", "2", 1.0]],
    }


def test_a_trial_names_its_layers_in_order() -> None:
    logged = tables.trial(7, None, [0.0] * 11, "PRUNED")
    assert logged["trial"] == 7 and "value" not in logged
    layers = [key for key in logged if key.startswith("temperature/")]
    assert layers == sorted(layers) and layers[-1] == "temperature/layer_10"
