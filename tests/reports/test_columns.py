"""Breaks when a table on a narrow terminal cuts a number, leaves out a column without saying so, or no longer says what its
rows are, and when a missing number looks like a zero."""

import pytest

from moe_lab.reports.columns import (
    Column,
    count,
    fixed,
    names,
    numbers,
    print_table,
    seconds,
    table_text,
    texts,
)
from moe_lab.results.measured import interval, number

SETTINGS = "method.schedule=router-experts"
METRIC = "exact_match,strict-match"


def columns(rows: int = 2) -> list[Column]:
    return [
        *names(model=["tiny"] * rows, settings=["", SETTINGS][:rows], metric=[METRIC] * rows),
        numbers("n", [1319] * rows, count, name=True),
        numbers("value", [0.59, 0.6][:rows], number),
        numbers("difference", [None, 0.01][:rows], lambda value: number(value, sign=True), spare=1),
        numbers("time", [1.25, 2.5][:rows], seconds, spare=2),
        texts("notes", ["", "untuned"][:rows]),
    ]


def test_what_all_rows_share_is_in_the_title_and_columns_without_a_text_are_not_shown():
    lines = table_text("Results", columns()).splitlines()
    assert lines[0] == f"Results: model=tiny metric={METRIC} n=1,319"
    assert lines[2].split() == ["settings", "value", "difference", "time", "notes"]
    assert lines[4].split() == ["0.5900", "1.2", "s"]
    assert lines[5].split() == [SETTINGS, "0.6000", "+0.0100", "2.5", "s", "untuned"]
    assert table_text("Results", columns(1)).splitlines()[2].split() == ["value", "time"]


@pytest.mark.parametrize(
    "width, left_out", [(80, ""), (67, "time"), (50, "time, difference"), (40, "time, difference")]
)
def test_a_narrow_terminal_has_fewer_columns_and_whole_numbers(capsys, monkeypatch, width, left_out):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table("Results", columns())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    said = " ".join(" ".join(lines).split()).partition("Left out for want of width: ")[2]
    assert said == (f"{left_out}." if left_out else "")
    text = "".join(line.split()[0] for line in lines if line.startswith(("method", "router", "-experts")))
    assert "0.6000" in "\n".join(lines) and (width < 50 or text == SETTINGS), "a name is folded, not cut"


def test_texts_of_numbers():
    assert number(0.5) == "0.5000" and number(-0.25, sign=True) == "-0.2500"
    assert number(123456.7) == "1.235e+05" and number(-0.0000021, sign=True) == "-2.1e-06"
    assert number(0.0, sign=True) == "+0.0000" and interval((-0.01, 0.02), sign=True) == "[-0.0100, +0.0200]"
    assert (seconds(1234.56), count(1234.5), fixed(2.345)) == ("1,234.6 s", "1,234", "2.35")
    assert number(None) == interval(None) == number(float("nan")) == interval((0.5, float("nan"))) == ""
    assert numbers("n", [None, 0], count).cells == ["", "0"]
