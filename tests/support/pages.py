"""Pages as trees: what a browser would show, and what it would ask for."""

from pathlib import Path
from typing import Any

from lxml import html

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028 &amp;"
"""An answer that would end a script element, open another one, and ask for a picture."""
URL_ATTRIBUTES = ("src", "href", "action", "srcset", "data", "poster")


def tree(page: Path) -> Any:
    """The root element of a page."""
    return html.document_fromstring(page.read_text(encoding="utf-8"))


def foreign_urls(page: Path) -> list[str]:
    """The addresses that a page would load from elsewhere.

    Data (`data:`), places within the page (`#`) and files in its folder are not foreign.
    """
    root = tree(page)
    foreign = []
    for attribute in URL_ATTRIBUTES:
        for url in root.xpath(f"//@{attribute}"):
            if _is_foreign(url):
                foreign.append(url)
    return foreign


def _is_foreign(url: str) -> bool:
    if url.startswith(("data:", "#")):
        return False
    return ":" in url or url.startswith("//")


def texts(elements: Any) -> list[str]:
    """The texts of elements, with single blanks."""
    return [" ".join(element.text_content().split()) for element in elements]


def rows_of(table: Any) -> list[dict[str, str]]:
    """The rows of a table: {heading: the number that sorts the cell, or else its text}.

    Where two headings are equal, the second one ends with a blank.
    """
    headings = _distinct_headings(table)
    rows = []
    for row in table.xpath("tbody/tr"):
        values = [_value_of(cell) for cell in row.xpath("td|th")]
        rows.append(dict(zip(headings, values, strict=True)))
    return rows


def _distinct_headings(table: Any) -> list[str]:
    headings: list[str] = []
    for heading in texts(table.xpath("thead//th")):
        if heading in headings:
            heading += " "
        headings.append(heading)
    return headings


def _value_of(cell: Any) -> str:
    sort_value = cell.get("data-value")
    if sort_value is not None:
        return sort_value
    return texts([cell])[0]


def contrast(colour: str, other_colour: str) -> float:
    """The contrast of two colours #rrggbb, from 1 to 21 (WCAG 2)."""
    darker, lighter = sorted([_luminance(colour), _luminance(other_colour)])
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    """The relative luminance of a colour #rrggbb, from 0 to 1 (WCAG 2)."""
    red = _linear(int(colour[1:3], 16) / 255)
    green = _linear(int(colour[3:5], 16) / 255)
    blue = _linear(int(colour[5:7], 16) / 255)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    """A channel of sRGB, from 0 to 1, without its gamma."""
    if channel <= 0.04045:
        return channel / 12.92
    return ((channel + 0.055) / 1.055) ** 2.4
