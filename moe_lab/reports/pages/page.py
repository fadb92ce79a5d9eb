"""Shared code of all pages: rendering, embedded files, downloads, and forest plots."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from moe_lab.reports.columns import Column, split_title
from moe_lab.reports.papers.metrics import quantity
from moe_lab.reports.scores import (
    EXPLAINED,
    ScoreLine,
    difference_panels,
    has_verdict,
    panel_title,
    sentence,
)
from moe_lab.results.atomic import write_file
from moe_lab.results.measured import interval, number

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
    made.filters |= {"number": number, "interval": interval, "sentence": sentence}
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


def picture_of(svg: Path) -> str:
    """A figure as a data URI."""
    return f"data:image/svg+xml;base64,{b64encode(svg.read_bytes()).decode()}"


def pictures_in(folder: Path) -> list[tuple[str, str]]:
    """Name and data URI of each figure in `<folder>/figures`."""
    return [(path.stem, picture_of(path)) for path in sorted((folder / "figures").glob("*.svg"))]


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


# Forest plots of differences

LEAST_SPAN = 0.02
"""The least length of an axis, so that a difference of 0.001 looks small."""


@dataclass(frozen=True)
class ForestPanel:
    """The rows of one task and metric, and the axis of their differences."""

    title: str
    label: str
    low: float
    high: float
    rows: list[ScoreLine]

    def share(self, value: float) -> float:
        """The place of a difference: 0 at the low end of the axis, 1 at the high end."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """At most six round numbers: the place of each (`share`), and its text with a sign."""
        from matplotlib.ticker import MaxNLocator

        found = map(float, MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(self.low, self.high))
        ticks = [tick for tick in found if self.low <= tick <= self.high]
        return [(self.share(tick), f"{tick:+g}" if tick else "0") for tick in ticks]


def forest(lines: Iterable[ScoreLine]) -> list[ForestPanel]:
    """The panels of the differences that have a verdict and an interval, the largest difference of a panel first."""
    found = []
    for group in difference_panels(line for line in lines if has_verdict(line.score)):
        first = group[0].score
        better = ", lower is better" if first.lower_is_better else ""
        ends = [0.0, *(end for line in group for end in line.score.tested_interval or ())]
        low, high = min(ends), max(ends)
        spare = max(0.0, LEAST_SPAN - (high - low)) / 2
        label = f"difference of {quantity(first.metric)}{better}"
        found.append(ForestPanel(panel_title(group), label, low - spare, high + spare, group))
    return found
