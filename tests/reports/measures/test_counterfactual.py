"""Breaks if a number stands in another band's row or in another column."""

from __future__ import annotations

from pathlib import Path

import pytest

from moe_lab.reports.measures import view_of
from moe_lab.reports.terminal.layout import number
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import NO_COMPARISONS
from tests.support.counterfactual import write_routes
from tests.support.stored_results import results_of


def test_a_row_for_all_tokens_and_for_each_band(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = results_of(overrides=[], seed=0)
    content = write_routes(tmp_path, results)
    view_of("counterfactual").print(
        [RunResult(results.content, folder) for folder in (tmp_path, tmp_path / "without")], NO_COMPARISONS
    )
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    rows = [line.split() for line in out.splitlines()]
    for name, band in (("all", content["all"]), ("0.4 to 0.6", content["bands"][2])):
        [first] = [i for i, row in enumerate(rows) if row[: len(name.split())] == name.split()]
        gain = {which: number(one["value"], sign=True) for which, one in band["gain"].items()}
        router = number(band["log_prob"]["router"])
        chance = number(band["chance"]["value"], sign=True)
        assert rows[first][len(name.split()) :] == [router, gain["mean"], gain["best"], chance]
        better = number(band["better"]["value"])
        assert rows[first + 1][:3] == [str(band["tokens"]), better, gain["roe"]]
        assert rows[first + 1][-1] == gain["worst"]
    assert "0.8 to 0.9" not in out


def test_without_routes_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view_of("counterfactual").print(
        [RunResult(results_of(overrides=[], seed=0).content, tmp_path)], NO_COMPARISONS
    )
    view_of("counterfactual").print([], NO_COMPARISONS)
    assert capsys.readouterr().out == ""
