"""Broken by numbers with too many digits, and by runs of a grid that look the same."""

from __future__ import annotations

from moe_lab.reports.terminal.results import number, settings


def test_large_numbers_keep_four_digits():
    assert number(0.5) == "0.5000"
    assert number(-0.25, sign=True) == "-0.2500"
    assert number(123456.7) == "1.235e+05"


def test_settings_tell_the_runs_of_a_grid_apart():
    typed = [["method=roe", "method.n=4", "limit=5"], ["method=roe", "method.n=8", "limit=5"]]
    assert settings(typed, [0, 0]) == ["method.n=4", "method.n=8"]
    assert settings([["limit=5"], ["limit=5"]], [0, 1]) == ["seed=0", "seed=1"]
    assert settings([["limit=5"]], [0]) == [""]
