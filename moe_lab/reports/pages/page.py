"""Shared code of all pages: rendering, embedded files, and downloads."""

import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup
from yaml import YAMLError

from moe_lab.config.terminal import one_line
from moe_lab.reports.columns import Column, split_title
from moe_lab.reports.scores import EXPLAINED, sentence
from moe_lab.results import measured
from moe_lab.results.atomic import plain as as_json
from moe_lab.results.atomic import write_file
from moe_lab.results.stored_files import SHOWN, DamagedError

# A page is one self-contained HTML file. Values are escaped by jinja2. Style, script, data and pictures are in the
# page; its content security policy forbids every request and every script but the page's own.

TEMPLATES = Path(__file__).parent / "templates"
IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters that could end a script element or a line of it, as JSON escapes."""


UNEXPECTED = (
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError),
    *(TemplateError, YAMLError),
)
"""The errors that rendering raises for unexpected content."""


def left_out(place: Path, error: Exception) -> str:
    """A message that stored files cannot be shown. Raises the error with HYDRA_FULL_ERROR=1.

    Other versions and methods of other packages may store unknown content. One such result must not hide the others.
    """
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        raise error
    what = " ".join(f"{type(error).__name__}: {error}".split())[:SHOWN]
    return f"{one_line(place)} has unexpected content ({what})"


@contextmanager
def collecting(problems: list[str], place: Path) -> Iterator[None]:
    """Add a message to `problems` where the block finds a damaged file or unexpected content in a folder."""
    try:
        yield
    except DamagedError as error:
        problems.append(error.problem)
    except UNEXPECTED as error:
        problems.append(left_out(place, error))


def write_page(path: Path, template: str, **content: Any) -> Path:
    """Write `templates/<template>` with its content and return the path. Raises ResultsError."""
    return write_file(path, environment().get_template(template).render(**content))


@cache
def environment() -> Environment:
    """jinja2 with autoescape. An undefined name is an error."""
    options: dict[str, Any] = dict(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, **options)
    made.filters |= dict(number=number, interval=interval, plain=plain, fact=fact)
    made.filters |= dict(sentence=sentence, json=inline_json)
    script = (TEMPLATES / "script.js").read_text(encoding="utf-8")
    made.globals |= {
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "explained": EXPLAINED,
        "split_title": split_title,
        "script_hash": b64encode(sha256(script.encode()).digest()).decode(),
    }
    return made


def plain(value: float | None) -> str:
    """A number as it is stored, for sorting; empty for None."""
    return "" if value is None else repr(value)


def number(value: float | None, sign: bool = False) -> str:
    """As everywhere, with the minus sign U+2212."""
    return measured.number(value, sign).replace("-", "\u2212")


def interval(bounds: Any, sign: bool = False) -> str:
    """As everywhere, with the minus sign U+2212."""
    return measured.interval(bounds, sign).replace("-", "\u2212")


def fact(value: str | int | float, name: str) -> str:
    """A fact as a text; one that is called a fraction as per cent."""
    if isinstance(value, str | bool):
        return str(value)
    return f"{100 * value:.1f}%" if name.endswith("_fraction") else f"{value:.6g}"


def inline_json(value: Any) -> Markup:
    """JSON for a script element, of which no text can end the element; NaN and infinities become null."""
    text = json.dumps(as_json(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in IN_SCRIPT.items():
        text = text.replace(character, escape)
    return Markup(text)


def picture_of(png: Path) -> str:
    """A figure as a data URI: its SVG, which follows dark mode, or its PNG if an earlier version drew it."""
    svg = png.with_suffix(".svg")
    kind, file = ("svg+xml", svg) if svg.is_file() else ("png", png)
    return f"data:image/{kind};base64,{b64encode(file.read_bytes()).decode()}"


def pictures_in(folder: Path) -> list[tuple[str, str]]:
    """Name and data URI of each figure in `<folder>/figures`."""
    return [(path.stem, picture_of(path)) for path in sorted((folder / "figures").glob("*.png"))]


def text_uri(text: str, kind: str) -> str:
    """Text as a data URI; `kind` is `csv` or `x-tex`."""
    return f"data:text/{kind};charset=utf-8;base64,{b64encode(text.encode('utf-8', 'replace')).decode()}"


# Tables as LaTeX for download

IN_LATEX = {
    "\u2212": "-",
    "\u2192": r"$\rightarrow$",
    "\u03c4": r"$\tau$",
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
}
"""LaTeX for characters that need it."""


def latex_of(columns: Sequence[Column], caption: str) -> str:
    """A LaTeX table with booktabs' rules; what is the same in all rows is in its caption."""
    from pandas import DataFrame

    shared, kept = split_title(columns)
    # to_latex escapes cells and headings, but not the caption
    whole = ": ".join(filter(None, [caption, ", ".join(shared)]))
    escaped = re.sub(r"[&%$#_{}]", r"\\\g<0>", whole.replace("\\", r"\textbackslash "))
    rows = list(zip(*(column.cells for column in kept), strict=True))
    frame = DataFrame(rows, columns=[column.heading for column in kept])
    text: str = frame.to_latex(index=False, escape=True, caption=escaped)
    return "".join(IN_LATEX.get(one, one) for one in text)
