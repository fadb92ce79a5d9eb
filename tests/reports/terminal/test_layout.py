"""Breaks when a table on a narrow terminal loses a letter or a digit, or no longer says whose numbers they are, and when a
missing number looks like a zero."""

import sys

import pytest

from moe_lab.reports.terminal.layout import (
    Column,
    TextTable,
    count,
    mebibytes,
    names,
    numbers,
    percent,
    print_text_table,
    seconds,
    text_table,
)
from moe_lab.results.measured import interval, number

SETTINGS = "method.schedule=router-experts"
METRIC = "exact_match,strict-match"


def grid(rows: int = 2) -> TextTable:
    run = names({"model": ["tiny"] * rows, "settings": ["", SETTINGS][:rows], "metric": [METRIC] * rows})
    n = Column(heading="n", cells=["1,319"] * rows, shared=True)
    values = numbers({"value": ["0.5900", "0.6000"][:rows], "95% interval": ["[0.5464, 0.6323]"] * rows})
    differences = numbers(
        {"difference": ["-", "+0.0100"][:rows], "95% interval": ["-", "[-0.01, +0.03]"][:rows]}
    )
    changed = numbers({"changed": ["-", "+112 -98"][:rows]})
    return text_table("Results", [*run, n, *values, *differences, *changed], ["PARTIAL"])


def printed(capsys: pytest.CaptureFixture[str], rows: int = 2) -> list[str]:
    print_text_table(grid(rows), {"changed": "+ right here.", "n": "documents."})
    return capsys.readouterr().out.splitlines()


def test_what_all_rows_share_stands_in_the_title_alone(capsys):
    lines = printed(capsys)
    assert lines[0] == f"Results: model=tiny metric={METRIC} n=1,319 PARTIAL"
    assert sum(METRIC in line for line in lines) == 1
    assert lines[-2] == "changed: + right here.", "n has no column, and no explanation"
    single = printed(capsys, rows=1)
    assert "0.5900" in single[4] and not any("changed" in line for line in single), (
        "no row has a changed answer"
    )


@pytest.mark.parametrize("width", (40, 60, 80, 200))
def test_on_a_narrow_terminal_every_cell_is_whole_and_named(capsys, monkeypatch, width):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = printed(capsys)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width and "…" not in text
    for cell in ("0.5900", "0.6000", "[0.5464, 0.6323]", "[-0.01, +0.03]", "+112 -98"):
        assert cell in text, cell
    parts = text.split("settings")[1:]
    assert (len(parts) > 1) == (width < 100)
    for part in parts:  # the folded name, put together again, stands beside every part's numbers
        words = "".join(line.split()[0] for line in part.splitlines() if line[:1].strip() and "─" not in line)
        assert SETTINGS in words


def test_large_numbers_keep_four_digits():
    assert number(0.5) == "0.5000"
    assert number(-0.25, sign=True) == "-0.2500"
    assert number(123456.7) == "1.235e+05" and number(-0.0000021, sign=True) == "-2.1e-06"
    assert number(0.0, sign=True) == "+0.0000"


def test_units():
    assert interval((-0.01, 0.02), sign=True) == "[-0.0100, +0.0200]"
    expected = ("1,234.6 s", "1,234", "2,048 MiB", "12.3%")
    assert (seconds(1234.56), count(1234.5), mebibytes(2**31), percent(0.1234)) == expected


def test_what_is_missing_is_empty():
    assert {show(None) for show in (number, interval, seconds, count, mebibytes, percent)} == {""}
    assert number(float("nan")) == interval((0.5, float("nan"))) == ""
