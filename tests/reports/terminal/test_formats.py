"""Broken by numbers with too many digits, and by missing numbers that look like zeros."""

from __future__ import annotations

from moe_lab.reports.terminal.layout import count, mebibytes, percent, seconds
from moe_lab.results.measured import interval, number


def test_large_numbers_keep_four_digits():
    assert number(0.5) == "0.5000"
    assert number(-0.25, sign=True) == "-0.2500"
    assert number(123456.7) == "1.235e+05" and number(-0.0000021, sign=True) == "-2.1e-06"
    assert number(0.0, sign=True) == "+0.0000"


def test_units():
    assert interval((-0.01, 0.02), sign=True) == "[-0.0100, +0.0200]"
    assert (seconds(1234.56), count(1234.5), mebibytes(2**31), percent(0.1234)) == (
        "1,234.6 s",
        "1,234",
        "2,048 MiB",
        "12.3%",
    )


def test_what_is_missing_is_empty():
    assert {show(None) for show in (number, interval, seconds, count, mebibytes, percent)} == {""}
    assert number(float("nan")) == interval((0.5, float("nan"))) == ""
