"""Breaks when a table on a narrow terminal loses a letter or a digit, or no longer says whose numbers they are."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from moe_lab.reports.terminal.layout import fitting


def lines_of(table: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False)
    for part in fitting(table, width):
        console.print(part)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def example() -> Table:
    table = Table("model", "settings", title="Results")
    for heading in ("n", "value", "95% interval", "difference"):
        table.add_column(heading, justify="right")
    table.add_column("marks")
    table.add_row("tiny", "", "500", "0.5900", "[0.5464, 0.6323]", "-", "PARTIAL untuned")
    settings = "method.schedule=router-experts"
    table.add_row("tiny", settings, "500", "0.6000", "[0.5565, 0.6420]", "+0.0100", "PARTIAL")
    return table


def test_a_table_that_fits_is_printed_once():
    lines = lines_of(example(), 200)
    assert sum("Results" in line for line in lines) == 1
    assert any("method.schedule=router-experts" in line and "+0.0100" in line for line in lines)


@pytest.mark.parametrize("width", (40, 60, 80))
def test_on_a_narrow_terminal_every_cell_is_whole_and_named(width):
    lines = lines_of(example(), width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width and "…" not in text
    for cell in ("500", "0.5900", "0.6000", "[0.5464, 0.6323]", "[0.5565, 0.6420]", "+0.0100", "PARTIAL"):
        assert cell in text, cell
    parts = [part for part in text.split("Results") if "┃" in part]
    assert len(parts) > 1
    for part in parts:  # the folded name, put together again, stands beside every part's numbers
        cells = [line.split("│")[2].strip() for line in part.splitlines() if line.startswith("│")]
        assert "".join(cells) == "method.schedule=router-experts"


def test_a_table_of_words_is_folded():
    table = Table("file", "state")
    table.add_row("a/very/long/path/that/does/not/fit.safetensors", "missing")
    lines = lines_of(table, 30)
    assert max(map(len, lines)) <= 30 and "…" not in "".join(lines)
