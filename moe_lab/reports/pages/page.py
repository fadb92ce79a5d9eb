"""Shared code of all pages: rendering, embedded files and pictures, downloads."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from moe_lab.reports.columns import Column, split_title
from moe_lab.reports.score_line import ScoreLine
from moe_lab.reports.verdicts import EXPLAINED, has_verdict, sentence
from moe_lab.results.atomic import write_file
from moe_lab.results.measured import interval_text, number

# A page is one self-contained HTML file. Values are escaped by jinja2. Style, script, data and pictures are in the
# page; its content security policy forbids every request and every script but the page's own.

TEMPLATES = Path(__file__).parent / "templates"


def write_page(path: Path, template: str, **content: Any) -> Path:
    """Write `templates/<template>` with its content and return the path. Raises ResultsError."""
    return write_file(path, environment().get_template(template).render(**content))


@cache
def environment() -> Environment:
    """jinja2 with autoescape. An undefined name is an error."""
    options: dict[str, Any] = dict(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, **options)
    made.filters |= {"number": number, "interval": interval_text, "sentence": sentence}
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    script = (TEMPLATES / "script.js").read_text(encoding="utf-8")
    made.globals |= {
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "explained": EXPLAINED,
        "split_title": split_title,
        "script_hash": b64encode(sha256(script.encode()).digest()).decode(),
    }
    return made


def picture_of(svg: bytes) -> str:
    """A figure as a data URI."""
    return f"data:image/svg+xml;base64,{b64encode(svg).decode()}"


def differences_picture(lines: Iterable[ScoreLine]) -> str | None:
    """A forest plot of the differences that have a verdict and an interval, as a data URI; None if there is none."""
    from moe_lab.reports.figures.primitives import differences_figure
    from moe_lab.reports.figures.style import SVG_METADATA, picture

    shown = [
        line for line in lines if has_verdict(line.score) and line.score.tested_interval is not None
    ]
    return picture_of(picture(differences_figure(shown), "svg", SVG_METADATA)) if shown else None


def pictures_in(folder: Path) -> list[tuple[str, str]]:
    """Name and data URI of each figure in `<folder>/figures`."""
    return [
        (path.stem, picture_of(path.read_bytes()))
        for path in sorted((folder / "figures").glob("*.svg"))
    ]


def text_uri(text: str, kind: str) -> str:
    """Text as a data URI; `kind` is `csv` or `x-tex`."""
    return f"data:text/{kind};charset=utf-8;base64,{b64encode(text.encode('utf-8', 'replace')).decode()}"


# Tables as LaTeX for download

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
    """A LaTeX table with booktabs' rules; what is the same in all rows is in its caption."""
    from pandas import DataFrame

    shared, kept = split_title(columns)
    # to_latex escapes cells and headings, but not the caption
    whole = ": ".join(filter(None, [caption, ", ".join(shared)]))
    escaped = "".join(ESCAPED.get(character, character) for character in whole)
    rows = list(zip(*(column.cells for column in kept), strict=True))
    frame = DataFrame(rows, columns=[column.heading for column in kept])
    text: str = frame.to_latex(index=False, escape=True, caption=escaped)
    return "".join(IN_LATEX.get(one, one) for one in text)
