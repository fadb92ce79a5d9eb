"""Breaks when a table is wider than 80 columns, loses a letter or a digit, breaks a word that fits, or no longer says
whose numbers they are."""

from __future__ import annotations

import sys

import pytest

from moe_lab.reports.terminal.layout import (
    WIDTH,
    Item,
    StackedTable,
    names,
    numbers,
    print_stacked,
    stacked_table,
    wrapped,
)

METHODS = ["base", "roe", "finetune-freeze"]
TASKS = ["arc_challenge", "gsm8k", "toy_math"]
SETTINGS = "method.schedule=router-experts method.temperature=[0.1,0.2,0.3,0.4,0.5,0.6]"


def grid(rows: int = 3) -> StackedTable:
    run = names({"method": METHODS[:rows], "settings": ["", "method.n=4", SETTINGS][:rows]})
    task = names({"task": TASKS[:rows], "metric": ["exact_match,strict-match"] * rows})
    intervals = [f"[-0.030{row}, +1,234.5678]" for row in range(rows)]
    columns = [
        numbers({heading: [f"{row}.1234" for row in range(rows)], "95% interval": intervals})
        for heading in ("value", "difference")
    ]
    n = Item(heading="n", cells=["1,319"] * rows, shared=True)
    flips = numbers({"flips": ["-", "+112 -98", "+0 -0"][:rows]})
    return stacked_table("Results", [run, task, [n], *columns, flips], ["PARTIAL"])


def printed(table: StackedTable, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_stacked(table, {"flips": "+ right here.", "n": "documents."})
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [200, 120, 90, 60])
def test_on_a_wide_terminal_every_item_has_a_column(capsys, monkeypatch, columns):
    """With 200 and 120 columns each number is in the line of its run; with 90 they do not fit, and are stacked."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = printed(grid(), capsys)
    assert max(map(len, lines)) <= max(columns, WIDTH)
    of_roe = next(line for line in lines if line.startswith("roe")).split()
    numbers_of_roe = ["1.1234", "[-0.0301,", "+1,234.5678]"] * 2 + ["+112", "-98"]
    assert (of_roe[-8:] == numbers_of_roe) == (columns >= 120)


def test_a_wide_grid_takes_80_columns_with_all_its_names_and_numbers(capsys):
    lines = printed(grid(), capsys)
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert "…" not in text and "value" in text and "difference" in text
    first_column = "".join(line[:13].strip() for line in lines)
    assert SETTINGS.replace(" ", "") in first_column, "no part of the settings is lost"
    for word in (
        "finetune-",
        "freeze",
        "temperature=",
        "challenge",
        "+112 -98",
        "2.1234",
        "[-0.0302,",
        "+1,234.5678]",
    ):
        assert word in text, f"{word} is broken"


def test_what_all_rows_share_stands_in_the_title_alone(capsys):
    lines = printed(grid(), capsys)
    assert lines[0] == "Results: metric=exact_match,strict-match n=1,319 PARTIAL"
    assert sum("strict-match" in line for line in lines) == 1
    assert lines[-2] == "flips: + right here.", "n has no column, and no explanation"
    single = printed(grid(1), capsys)
    assert single[:2] == [
        "Results: method=base task=arc_challenge metric=exact_match,strict-match n=1,319",
        "PARTIAL",
    ]
    assert not any("flips" in line for line in single), "no row has flips"


def test_numbers_that_are_equal_stay_beside_their_rows():
    table = stacked_table("Results", [names({"method": ["base", "roe"]}), numbers({"value": ["0.5", "0.5"]})])
    assert table.title == "Results" and table.headings == ["method", "value"]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    (
        ("method.n=4", 10, ["method.n=4"]),
        ("method.n=4", 9, ["method.n=", "4"]),
        ("a bc d", 4, ["a bc", "d"]),
        ("method.lr=2e-05,0.25", 12, ["method.lr=", "2e-05,0.25"]),
        ("task.name=[arc_easy,piqa]", 12, ["task.name=", "[arc_easy,", "piqa]"]),
        ("unbreakable", 4, ["unbr", "eaka", "ble"]),
        ("", 4, [""]),
    ),
)
def test_names_break_behind_separators_and_never_in_a_number(text, width, lines):
    assert wrapped(text, width, name=True) == lines


def test_numbers_break_at_blanks_only():
    assert wrapped("[-0.0370, +0.0370]", 10, name=False) == ["[-0.0370,", "+0.0370]"]
