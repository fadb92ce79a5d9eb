"""The common style of figures: size, colours for colour-blind readers, text that fits, and saving with a CSV."""

import io
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator

from moe_lab.results.atomic import write_file, write_rows

DPI = 200
SVG_METADATA = {"Date": None, "Creator": None}
FORMATS: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": SVG_METADATA}
"""With the metadata that would differ from one drawing to the next."""
PAGE_WIDTH = 7.0
"""Inches between the margins of a page."""

BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, "#56B4E9", "#000000")
"""Okabe and Ito's palette."""
GREY = "#767676"
NUMBER_BOX = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8}
"""The background of a number, which hides the lines below it."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE = Path(__file__).with_suffix(".mplstyle")
FALLBACK_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "Arial Unicode MS")
"""Fonts with Chinese, Japanese and Korean characters, which matplotlib's own font lacks."""


@contextmanager
def styled() -> Iterator[None]:
    """The style of figures. Characters that no installed font has are boxes in a PNG; a browser has its own fonts."""
    installed = set(font_manager.get_font_names())
    families = ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed)]
    with matplotlib.rc_context({"font.family": families}, fname=STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def look_of(number: int, colours: Sequence[str] = COLOURS) -> tuple[str, str]:
    """(colour, marker) of a series by its number from 0; the pairs repeat after 49."""
    turn = number // len(colours)
    return colours[number % len(colours)], MARKERS[(number + turn) % len(MARKERS)]


@dataclass(frozen=True)
class Drawing:
    """A figure: its numbers, and how they are drawn."""

    rows: Sequence[Mapping[str, object]]
    draw: Callable[[str], Figure]
    """The figure with a title."""
    title: str = ""
    """That of a figure outside of an experiment."""

    def save(self, folder: Path, stem: str, title: str | None = None) -> list[Path]:
        """Save the figure as `<stem>.png`, and as `.svg` for pages, and the rows as `<stem>.csv`.

        Returns the paths of PNG and CSV, none without rows. Raises ResultsError.
        """
        if not self.rows:
            return []
        table = write_rows(self.rows, folder / f"{stem}.csv")
        with styled():
            figure = self.draw(self.title if title is None else title)
            fit(figure)
            for kind, metadata in FORMATS.items():
                write_file(folder / f"{stem}.{kind}", picture(figure, kind, metadata))
                # everything keeps its place, and is not placed again
                figure.set_layout_engine("none")
        return [folder / f"{stem}.png", table]


def picture(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    """A figure as a file, with metadata in place of the format's own."""
    content = io.BytesIO()
    with styled():
        figure.savefig(content, format=kind, dpi=DPI, metadata=metadata)
    return content.getvalue()


def step_axis(axis: Axes, label: str) -> None:
    """A horizontal axis of whole numbers."""
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel(label)


def count_axis(axis: Axes, counts: Sequence[int], label: str) -> None:
    """A horizontal axis of counts that double, each with its number."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.minorticks_off()
    axis.set_xlabel(label)


def log_axis(axis: Axes) -> None:
    """A logarithmic vertical axis with plain numbers at 1, 2, 5, 10, ..."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()


# Last adjustments to a figure before it is saved

LEAST_SPAN = 0.05
"""The least span of a linear axis, in its unit, so that values that differ by 0.001 look close together."""


def fit(figure: Figure) -> None:
    """Widen vertical axes with less than LEAST_SPAN, and wrap titles and labels so that they fit."""
    # a colour bar is no panel
    panels = [axis for axis in figure.axes if axis.get_subplotspec() is not None]
    for axis in panels:
        linear = axis.has_data() and axis.get_yscale() == "linear"
        if linear and axis.get_autoscaley_on():  # limits that are set by hand stay
            axis.set_ylim(_widened(*axis.get_ylim()))
    with styled():
        for text in figure.texts:
            _wrap(text, figure.bbox.width)
        _settle(figure)
        for axis in panels:
            _wrap(axis.title, axis.bbox.width)
            _wrap(axis.xaxis.label, axis.bbox.width)
            _wrap(axis.yaxis.label, axis.bbox.height)
        _settle(figure)


def _settle(figure: Figure) -> None:
    """Give every artist its place.

    A drawing begins with the layout, which knows the ticks of the drawing before. The first one has none, and the
    second one may get others, because the panels have changed their sizes.
    """
    for _ in range(2):
        figure.draw_without_rendering()


def _wrap(text: Text, room: float) -> None:
    """Wrap a text to a length in pixels: its width, or of a vertical text its height."""
    lines = text.get_text().split("\n")
    width = max(map(len, lines))
    while (length := _length(text)) > room and width > 1:
        width = min(width - 1, int(width * room / length))
        text.set_text("\n".join(textwrap.fill(line, max(1, width)) for line in lines))


def _length(text: Text) -> float:
    extent = text.get_window_extent()
    vertical = text.get_rotation() == 90
    return extent.height if vertical else extent.width


LABEL_WIDTH = 44
"""Most characters in a line of a label next to a panel, about two fifths of a page."""


def wrapped_label(label: str) -> str:
    """The label of a line of a panel, in as many lines as it takes."""
    return textwrap.fill(label, LABEL_WIDTH)


def widen_x(axis: Axes) -> None:
    """Widen the horizontal axis of a panel if it shows measurements. An axis of settings is not widened."""
    axis.set_xlim(_widened(*axis.get_xlim()))


def _widened(low: float, high: float) -> tuple[float, float]:
    missing = max(0.0, LEAST_SPAN - abs(high - low)) / 2
    return (low - missing, high + missing) if low <= high else (low + missing, high - missing)
