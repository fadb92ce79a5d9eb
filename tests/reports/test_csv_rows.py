"""CSV files of rows. Broken by a text that a spreadsheet executes, and by a number that becomes a text."""

from __future__ import annotations

import csv
import io

import pytest

from moe_lab.config.terminal import shown
from moe_lab.reports.csv_rows import csv_text, safe_cell, write_rows

FORMULAS = ['=HYPERLINK("http://x")', "+cmd|'/c calc'!A1", "-2+3", "@SUM(A1)", "\tx", "\rx", "+0 -1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_text(text, tmp_path):
    rows = [{"model": text, "value": -0.5, "difference": "-0.0370", "p": "+1.5e-05", "n": "-"}]
    for content in (write_rows(rows, tmp_path / "rows.csv").read_bytes().decode(), csv_text(rows)):
        [row] = csv.DictReader(io.StringIO(content, newline=""))
        assert row["model"] == f"'{shown(text)}"
        assert [row[key] for key in ("value", "difference", "p", "n")] == ["-0.5", "-0.0370", "+1.5e-05", "-"]


def test_numbers_and_other_texts_stay():
    values = [-0.5, None, 3, True, "", "a=b", "-0.5", "+1", ".5", "-1e-3", "roe", "[-0.1, 0.2]"]
    assert [safe_cell(value) for value in values] == values
