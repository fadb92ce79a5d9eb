"""Stored runs. Broken by a baseline that is another run whose folder ends alike."""

from __future__ import annotations

from moe_lab.reports.pages.answers import baseline_of
from moe_lab.results.model import find_run
from moe_lab.results.samples import read_samples
from tests.support.stored_runs import generated_line, pair_of_runs, stored_run


def test_the_baseline_is_found_by_its_whole_id(tmp_path):
    base, own = pair_of_runs(tmp_path, [("1", 1.0)], [("2", 0.0)])
    stored_run(tmp_path, "b" * 8 + "c" * 56, [generated_line(0, ("3", 0.0))], "another")
    assert baseline_of(own).folder == base.folder and baseline_of(base) is None
    assert find_run(tmp_path / "runs", "b" * 8 + "d" * 56) is None
    assert read_samples(own)["t"][0].responses == [["2"]]
