"""Tables as LaTeX for download."""

from collections.abc import Sequence

from moe_lab.reports.columns import Column, split_title

IN_LATEX = {
    "\u2192": r"$\rightarrow$",
    "\u03c4": r"$\tau$",
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
}
"""LaTeX for characters that need it."""
ESCAPED = {character: f"\\{character}" for character in "&%$#_{}"}
ESCAPED |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
"""Characters that LaTeX reads as commands."""


def latex_of(columns: Sequence[Column], caption: str) -> str:
    """A LaTeX table with booktabs' rules. Names that all rows share are in its caption."""
    from pandas import DataFrame

    shared, kept = split_title(columns)
    caption_parts = [caption, ", ".join(shared)]
    whole_caption = ": ".join(part for part in caption_parts if part)
    rows = list(zip(*(column.cells for column in kept), strict=True))
    frame = DataFrame(rows, columns=[column.heading for column in kept])
    # to_latex escapes cells and headings, but not the caption
    text: str = frame.to_latex(index=False, escape=True, caption=_replaced(whole_caption, ESCAPED))
    return _replaced(text, IN_LATEX)


def _replaced(text: str, replacements: dict[str, str]) -> str:
    """The text with some characters replaced."""
    return "".join(replacements.get(character, character) for character in text)
