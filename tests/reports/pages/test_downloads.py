"""Downloads. Broken by text that LaTeX would read as commands."""

from __future__ import annotations

from moe_lab.reports.csv_rows import csv_text
from moe_lab.reports.pages.page import latex_of_rows

ROWS = [{"task": "a_b", "value": "61.0%"}, {"task": "c", "value": "1 & 2"}]


def test_latex_has_booktabs_and_escapes():
    text = latex_of_rows(ROWS, "50% of a_b")
    assert all(rule in text for rule in ("\\toprule", "\\midrule", "\\bottomrule"))
    arrow = latex_of_rows([{"schedule": "N\u2192R", "value": "\u22120.1"}], "x")
    assert "N$\\rightarrow$R & -0.1" in arrow
    assert "a\\_b & 61.0\\%" in text and "1 \\& 2" in text and "\\caption{50\\% of a\\_b}" in text


def test_csv():
    assert csv_text(ROWS) == "task,value\na_b,61.0%\nc,1 & 2\n"
