"""Breaks if a run lacks a comparison, or has one whose answers are those of the base model by construction."""

from __future__ import annotations

import pytest

from moe_lab.methods.profile import Profile
from moe_lab.runs.prepare import prepare
from tests.support.runs import config, small_data

PROFILE = Profile(
    model="m", task="t", study="s", tuning="grid", metric="perplexity", n=1, trials=2, trial=1, score=1.0,
    untuned_score=2.0, split="train", samples={"t": [1]}, documents=["a"], temperature=[], calibrated_scale=1.1,
    settings={"beta": 0.5, "rank": 2, "alpha": 0.1, "weak": "rank", "cache": "clean"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("task", "keys", "compared"),
    [
        ("gsm8k", {}, []),
        ("gsm8k", {"gen_kwargs": {"do_sample": True, "temperature": 0.5}}, ["calibration"]),
        ("arc_easy", {}, ["calibration"]),
    ],
)
def test_calibration_is_compared_where_it_can_change_an_answer(
    task, keys, compared, tiny_olmoe_dir, tmp_path
):
    """A logit scale changes no greedy answer."""
    (tmp_path / "best.yaml").write_text(PROFILE.text())
    given = {"method_keys": {"profile": str(tmp_path / "best.yaml")}, "num_fewshot": 0, "limit": 2}
    data = small_data(tmp_path / "data")
    run = prepare(config(tiny_olmoe_dir, data, tmp_path / "out", task, "scmoe", **given, **keys))
    assert list(run.comparisons) == compared and run.baseline is not None
