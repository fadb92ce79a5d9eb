"""The drawing primitives, on rows of data frames: curves, points, bars, and heatmaps.

The columns `low` and `high` of a row are its 95% interval, `published` is the paper's value. A
missing number is None or NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, notna

from moe_lab.reports.figures.fit import widen_x, wrapped_label
from moe_lab.reports.figures.style import BLUE, COLOURS, RED, look_of

COLOUR_MAP = "cividis"
MOST_LEVEL_NAMES = 4
"""More names of places of bars are slanted."""


def curve(
    axis: Axes,
    rows: DataFrame,
    x: str,
    y: str = "value",
    *,
    colour: str = BLUE,
    style: str = "o-",
    label: str | None = None,
    band: str | None = None,
    **line: Any,
) -> None:
    """A line of the column `y` over the column `x`, with a bar for each interval.

    Rows without a `y` are left out. With `band` there is a band over all intervals instead, with
    this label. `line` are matplotlib's options of the line.
    """
    known = rows.dropna(subset=[y]).astype({x: float, y: float})
    axis.plot(known[x], known[y], style, color=colour, label=label, **line)
    if band is None:
        intervals(axis, known, x, colour)
    else:
        _band(axis, known, x, colour, band)
    published(axis, known, x)


def _band(axis: Axes, rows: DataFrame, x: str, colour: str, label: str) -> None:
    """A band over all intervals.

    Nothing is drawn if a point has no interval, because the band would hide that.
    """
    limited = _with_limits(rows, x)
    if len(limited) < len(rows):
        return
    axis.fill_between(
        limited[x], limited["low"], limited["high"], color=colour, alpha=0.15, lw=0, label=label
    )


def intervals(axis: Axes, rows: DataFrame, x: str, colour: str) -> None:
    """A vertical line for each interval, at its place in the column `x`."""
    limited = _with_limits(rows, x)
    axis.vlines(limited[x], limited["low"], limited["high"], color=colour, lw=0.9)


def _with_limits(rows: DataFrame, x: str) -> DataFrame:
    """The rows that have an interval: their place, `low` and `high`."""
    return rows.reindex(columns=[x, "low", "high"]).dropna().astype(float)


def published(axis: Axes, rows: DataFrame, x: str) -> None:
    """A mark for each published value, at its place in the column `x`."""
    if "published" not in rows:
        return
    paper = rows.dropna(subset=["published"])
    if len(paper):
        axis.plot(paper[x], paper["published"], "D", mfc="none", mec=RED, ms=5, label="published")


def curves(
    axis: Axes, rows: DataFrame, x: str, y: str = "value", by: str = "line", **options: Any
) -> None:
    """A curve for each value of the column `by`. `options` are those of `curve`."""
    for number, (name, series) in enumerate(rows.groupby(by, sort=False)):
        colour, marker = look_of(number)
        look = {"colour": colour, "style": f"{marker}-", "label": str(name)}
        curve(axis, series, x, y, **look | options)


def points(
    axis: Axes, rows: DataFrame, name: str, look: Callable[[Any], dict[str, Any]], names: list[str]
) -> None:
    """Each row's value, its interval and the published value, in the line of its column `name`.

    The first line is at the top. `look(row)` are matplotlib's options of the point; `names` are all
    lines, where other panels have more of them.
    """
    for row in rows.itertuples():
        if not notna(row.value):
            continue
        height = names.index(getattr(row, name))
        options = look(row)
        if notna(row.low):
            axis.plot([row.low, row.high], [height, height], "-", color=options["color"], lw=1.1)
        axis.plot(row.value, height, "o", **options)
        if notna(getattr(row, "published", None)):
            axis.plot(row.published, height, "D", mfc="none", mec=RED, ms=5, label="published")
    axis.set_yticks(range(len(names)), map(wrapped_label, names))
    axis.set_ylim(len(names) - 0.4, -0.6)
    widen_x(axis)


def bars(
    axis: Axes,
    rows: DataFrame,
    across: str,
    by: str,
    *,
    order: Sequence[str],
    series: Sequence[str],
    colours: Sequence[str] = COLOURS,
    filled: bool = True,
) -> None:
    """The values of each series (column `by`) as bars, at each place of `order` (column `across`).

    With `filled=False` they are points: bars begin at 0, which says nothing about a loss.
    """
    width = 0.8 / max(1, len(series))
    for index, name in enumerate(series):
        colour, marker = look_of(index, colours)
        of_series = rows[(rows[by] == name) & rows["value"].notna()]
        shift = (index - (len(series) - 1) / 2) * width
        places = [order.index(place_name) + shift for place_name in of_series[across]]
        placed = of_series.assign(place=places)
        if filled:
            axis.bar(placed["place"], placed["value"], width * 0.92, color=colour, label=name)
            intervals(axis, placed, "place", "black")
            published(axis, placed, "place")
        else:
            curve(axis, placed, "place", colour=colour, style=marker, label=name)

    tick_options: dict[str, Any] = {}
    if len(order) > MOST_LEVEL_NAMES:
        tick_options = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(order)), order, **tick_options)
    axis.set_xlim(-0.6, len(order) - 0.4)
    axis.grid(axis="x", visible=False)


def heatmap(axis: Axes, values: Any, top: float | None, **labels: Any) -> AxesImage:
    """An array [rows, columns] as colours from 0 to `top`, without grid, ticks and frame.

    `labels` are the axes'.
    """
    axis.grid(False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    image = axis.imshow(
        values, cmap=COLOUR_MAP, vmin=0, vmax=top, aspect="auto", interpolation="none"
    )
    for direction in (axis.xaxis, axis.yaxis):
        direction.set_major_locator(MaxNLocator(integer=True))
    axis.set(**labels)
    return image
