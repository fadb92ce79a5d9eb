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
    """The addresses of a page that are neither data nor a place within it or beside it."""
    found = [value for name in URL_ATTRIBUTES for value in tree(page).xpath(f"//@{name}")]
    own = ("data:", "#")
    return [
        url for url in found if not url.startswith(own) and (":" in url or url.startswith("//"))
    ]


def texts(elements: Any) -> list[str]:
    """The texts of elements, with single blanks."""
    return [" ".join(element.text_content().split()) for element in elements]


def rows_of(table: Any) -> list[dict[str, str]]:
    """The rows of a table: by heading the number that sorts it, or the text. Of equal headings the second has a blank."""
    headings: list[str] = []
    for name in texts(table.xpath("thead//th")):
        headings.append(f"{name} " if name in headings else name)
    cells = [
        [(one.get("data-value"), one) for one in row.xpath("td|th")]
        for row in table.xpath("tbody/tr")
    ]
    return [
        {
            heading: texts([cell])[0] if value is None else value
            for heading, (value, cell) in zip(headings, row, strict=True)
        }
        for row in cells
    ]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours #rrggbb, from 1 to 21 (WCAG 2)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return sum(
            weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
        )

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)
