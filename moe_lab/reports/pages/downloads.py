"""Tables as LaTeX and CSV texts for download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moe_lab.reports.csv_rows import safe_row

IN_LATEX = {
    "\u2212": "-",
    "\u2192": r"$\rightarrow$",
    "\u03c4": r"$\tau$",
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
}
"""Characters that LaTeX does not set as they are."""


def latex_of_rows(rows: Sequence[Mapping[str, Any]], caption: str) -> str:
    """Rows that share their keys as a LaTeX table with booktabs' rules."""
    from pandas import DataFrame

    text: str = DataFrame(list(rows)).to_latex(index=False, escape=True, caption=_escaped(caption))
    return "".join(IN_LATEX.get(one, one) for one in text)


def csv_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows that share their keys as CSV."""
    from pandas import DataFrame

    text: str = DataFrame([safe_row(row) for row in rows]).to_csv(index=False, lineterminator="\n")
    return text


def _escaped(text: str) -> str:
    """Text for LaTeX: to_latex escapes cells and headings, and no caption."""
    return "".join(
        {"\\": r"\textbackslash{}"}.get(one, f"\\{one}" if one in "&%$#_{}" else one) for one in text
    )
