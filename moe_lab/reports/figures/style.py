"""The common style of figures: size, fonts, colours for colour-blind readers, kinds of axes."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator

PAGE_WIDTH = 7.0
"""Inches between the margins of a page."""

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
RED = "#D55E00"
PURPLE = "#CC79A7"
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
    """The style of figures.

    Characters that no installed font has are boxes in a PNG; a browser has its own fonts.
    """
    installed = set(font_manager.get_font_names())
    families = ["DejaVu Sans"]
    families += [name for name in FALLBACK_FONTS if name in installed]
    with matplotlib.rc_context({"font.family": families}, fname=STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def look_of(number: int, colours: Sequence[str] = COLOURS) -> tuple[str, str]:
    """(colour, marker) of a series by its number from 0; the pairs repeat after 49."""
    turn = number // len(colours)
    colour = colours[number % len(colours)]
    marker = MARKERS[(number + turn) % len(MARKERS)]
    return colour, marker


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
