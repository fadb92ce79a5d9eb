"""Shared code of all pages: rendering, embedded files and pictures.

A page is one self-contained HTML file. Values are escaped by jinja2. Style, script, data and
pictures are in the page; its content security policy forbids every request and every script but the
page's own.
"""

from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from moe_lab.reports.columns import split_title
from moe_lab.reports.score_line import ScoreLine
from moe_lab.reports.verdicts import EXPLAINED, has_verdict, sentence
from moe_lab.results.atomic import write_file
from moe_lab.results.measured import interval_text, number

TEMPLATES = Path(__file__).parent / "templates"


def write_page(path: Path, template: str, **content: Any) -> Path:
    """Write `templates/<template>` with its content and return the path. Raises ResultsError."""
    return write_file(path, environment().get_template(template).render(**content))


@cache
def environment() -> Environment:
    """jinja2 with autoescape. An undefined name is an error."""
    options: dict[str, Any] = dict(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, **options)
    environment.filters |= {"number": number, "interval": interval_text, "sentence": sentence}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}

    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "script.js").read_text(encoding="utf-8")
    environment.globals |= {
        "style": Markup(style),
        "script": Markup(script),
        "explained": EXPLAINED,
        "split_title": split_title,
        "script_hash": b64encode(sha256(script.encode()).digest()).decode(),
    }
    return environment


def picture_of(svg: bytes) -> str:
    """A figure as a data URI."""
    return f"data:image/svg+xml;base64,{b64encode(svg).decode()}"


def differences_picture(lines: Iterable[ScoreLine]) -> str | None:
    """A forest plot of the differences that have a verdict and an interval, as a data URI.

    None if there is none.
    """
    from moe_lab.reports.figures.differences import differences_figure
    from moe_lab.reports.figures.drawing import SVG_METADATA, picture

    shown = []
    for line in lines:
        if has_verdict(line.score) and line.score.tested_interval is not None:
            shown.append(line)
    if not shown:
        return None
    return picture_of(picture(differences_figure(shown), "svg", SVG_METADATA))


def pictures_in(folder: Path) -> list[tuple[str, str]]:
    """(name, data URI) of each figure in `<folder>/figures`; empty without that folder."""
    files = sorted((folder / "figures").glob("*.svg"))
    return [(file.stem, picture_of(file.read_bytes())) for file in files]


def text_uri(text: str, kind: str) -> str:
    """Text as a data URI; `kind` is `csv` or `x-tex`."""
    encoded = b64encode(text.encode("utf-8", "replace")).decode()
    return f"data:text/{kind};charset=utf-8;base64,{encoded}"
