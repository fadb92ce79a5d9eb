"""The drawing primitives, on rows of data frames: curves, points, bars next to each other, heatmaps, and differences.

The columns `low` and `high` of a row are its 95% interval, `published` is the paper's value. A missing number is
None or NaN.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, notna

from moe_lab.reports.figures.style import (
    BLUE,
    COLOURS,
    GREY,
    PAGE_WIDTH,
    RED,
    Drawing,
    fit,
    look_of,
    styled,
    widen_x,
    wrapped_label,
)
from moe_lab.reports.papers.units import quantity
from moe_lab.reports.plotted import difference_panels, panel_title
from moe_lab.reports.score_line import ScoreLine

Panel = Callable[[Axes, Any, DataFrame], None]
"""Draws the panel of an item from its rows."""
MAX_COLUMNS = 3
"""Most panels side by side that are legible at page width."""
MOST_CONSTRAINED = 30
COLOUR_MAP = "cividis"
LEGEND_CHARACTERS = 18
"""Characters of a legend per inch."""


# Panels


def panels(
    count: int, height: float = 2.1, columns: int = MAX_COLUMNS, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes in rows of `columns`, page-wide unless it is one of several columns alone."""
    width = 0.72 * PAGE_WIDTH if count == 1 < columns else PAGE_WIDTH
    columns = min(count, columns)
    lines = -(-count // columns)
    figure = Figure(figsize=(width, height * lines + 0.4), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, **options).ravel().tolist()
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def stacked_panels(height: float, ratios: Sequence[float], title: str) -> tuple[Figure, list[Axes]]:
    """A page-wide figure of `height` inches: panels below each other, whose heights have these ratios."""
    # the time of a constrained layout grows with the square of the panels
    layout: Literal["constrained", "tight"] = (
        "constrained" if len(ratios) <= MOST_CONSTRAINED else "tight"
    )
    figure = Figure(figsize=(PAGE_WIDTH, height), layout=layout)
    figure.suptitle(title)
    return figure, figure.subplots(
        len(ratios), 1, squeeze=False, height_ratios=ratios
    ).ravel().tolist()


def panel_per(
    items: Sequence[tuple[Any, ...]], title: str, draw: Callable[..., None], **options: Any
) -> Figure:
    """One panel for each item, drawn by `draw(axes, *item)`, and a legend for all. `options` are those of `panels`."""
    figure, axes = panels(len(items), **options)
    figure.suptitle(title)
    for axis, item in zip(axes, items, strict=True):
        draw(axis, *item)
    legend_below(figure, axes)
    return figure


def panels_by(frame: DataFrame, by: str | list[str], draw: Panel, **options: Any) -> Drawing:
    """A figure with one panel for each value of the columns `by`. `options` are those of `panels`."""
    groups = list(frame.groupby(by, sort=False))
    return Drawing(
        frame.to_dict("records"), lambda title: panel_per(groups, title, draw, **options)
    )


def panels_of(
    items: Iterable[tuple[Any, list[dict[str, Any]]]], draw: Panel, title: str = "", **options: Any
) -> Drawing:
    """A figure with one panel for each item and its rows. `options` are those of `panels`."""
    own = [(item, DataFrame(rows, dtype=object)) for item, rows in items]
    every = [row for _, rows in own for row in rows.to_dict("records")]
    return Drawing(every, lambda title: panel_per(own, title, draw, **options), title)


def panels_of_points(
    rows: DataFrame, name: str, look: Callable[[Any], dict[str, Any]], finish: Panel
) -> Drawing:
    """A figure of `points`, one panel for each value of the column `panel`, all with the same lines.

    `finish` adds titles and reference lines.
    """
    names = list(rows[name].unique())

    def draw(axis: Axes, panel: str, own: DataFrame) -> None:
        points(axis, own, name, look, names)
        finish(axis, panel, own)

    lines = sum(len(wrapped_label(name).split("\n")) for name in names)
    return panels_by(rows, "panel", draw, height=1.0 + 0.17 * lines, sharey=True)


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    """One legend below all axes, with every label once, in as many columns as fit."""
    entries: dict[str, Artist] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    # the longest labels, each with its line, side by side
    widths = accumulate(sorted((len(label) + 6 for label in entries), reverse=True)[:columns])
    count = sum(width <= LEGEND_CHARACTERS * figure.get_figwidth() for width in widths) or 1
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=count)


# Curves


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
    """A line over the column `x`, with a bar for each interval, or a band with the label `band` over all of them."""
    known = rows.dropna(subset=[y]).astype({x: float, y: float})
    axis.plot(known[x], known[y], style, color=colour, label=label, **line)
    if band is None:
        intervals(axis, known, x, colour)
    else:
        limited = _with_limits(known, x)
        # a band over some of the points would hide that others have no interval
        if len(limited) == len(known):
            axis.fill_between(
                limited[x],
                limited["low"],
                limited["high"],
                color=colour,
                alpha=0.15,
                lw=0,
                label=band,
            )
    published(axis, known, x)


def intervals(axis: Axes, rows: DataFrame, x: str, colour: str) -> None:
    """A vertical line for each interval, at its place in the column `x`."""
    limited = _with_limits(rows, x)
    axis.vlines(limited[x], limited["low"], limited["high"], color=colour, lw=0.9)


def _with_limits(rows: DataFrame, x: str) -> DataFrame:
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
    for number, (name, own) in enumerate(rows.groupby(by, sort=False)):
        colour, marker = look_of(number)
        curve(
            axis,
            own,
            x,
            y,
            **{"colour": colour, "style": f"{marker}-", "label": str(name)} | options,
        )


# Points with intervals, a line per name


def points(
    axis: Axes, rows: DataFrame, name: str, look: Callable[[Any], dict[str, Any]], names: list[str]
) -> None:
    """Each row's value, its interval and the published value, in the line of its column `name`, the first at the top.

    `look(row)` are matplotlib's options of the point; `names` are all lines, where other panels have more of them.
    """
    for row in rows.itertuples():
        if not notna(row.value):
            continue
        height, options = names.index(getattr(row, name)), look(row)
        if notna(row.low):
            axis.plot([row.low, row.high], [height, height], "-", color=options["color"], lw=1.1)
        axis.plot(row.value, height, "o", **options)
        if notna(getattr(row, "published", None)):
            axis.plot(row.published, height, "D", mfc="none", mec=RED, ms=5, label="published")
    axis.set_yticks(range(len(names)), map(wrapped_label, names))
    axis.set_ylim(len(names) - 0.4, -0.6)
    widen_x(axis)


# Bars next to each other


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
    """The values of each series (column `by`) next to each other at each place of `order` (column `across`).

    With `filled=False` they are points: bars begin at 0, which says nothing about a loss.
    """
    width = 0.8 / max(1, len(series))
    for index, one in enumerate(series):
        colour, marker = look_of(index, colours)
        own = rows[(rows[by] == one) & rows["value"].notna()]
        shift = (index - (len(series) - 1) / 2) * width
        placed = own.assign(place=[order.index(name) + shift for name in own[across]])
        if filled:
            axis.bar(placed["place"], placed["value"], width * 0.92, color=colour, label=one)
            intervals(axis, placed, "place", "black")
            published(axis, placed, "place")
        else:
            curve(axis, placed, "place", colour=colour, style=marker, label=one)
    slanted: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(order)), order, **(slanted if len(order) > 4 else {}))
    axis.set_xlim(-0.6, len(order) - 0.4)
    axis.grid(axis="x", visible=False)


# Heatmaps


def heatmap(axis: Axes, values: Any, top: float | None, **labels: Any) -> AxesImage:
    """An array [rows, columns] as colours from 0 to `top`, without grid, ticks and frame. `labels` are the axes'."""
    axis.grid(False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    image = axis.imshow(
        values, cmap=COLOUR_MAP, vmin=0, vmax=top, aspect="auto", interpolation="none"
    )
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(MaxNLocator(integer=True))
    axis.set(**labels)
    return image


# Differences to another run: points with intervals, one panel per task and metric


def differences_figure(lines: Iterable[ScoreLine]) -> Figure:
    """The differences as points with their intervals, the largest of a panel first. There is at least one."""
    groups = difference_panels(lines)
    with styled():
        figure = draw_differences(groups, list(map(panel_title, groups)))
        fit(figure)
    return figure


def draw_differences(
    groups: Sequence[Sequence[ScoreLine]], titles: Sequence[str], title: str = ""
) -> Figure:
    """A panel for each group: its lines in their order with their corrected p, and a line at 0.

    A point is filled where the difference is significant.
    """
    labels = [[_label_with_p(line) for line in lines] for lines in groups]
    heights = [sum(map(_label_height, own)) + 0.8 for own in labels]
    figure, axes = stacked_panels(sum(heights) + 0.3 * bool(title), heights, title)
    for axis, lines, own_labels, name in zip(axes, groups, labels, titles, strict=True):
        places, scores = range(len(lines)), [line.score for line in lines]
        axis.axvline(0, color=GREY, ls=":", lw=1.1)
        for place, score in zip(places, scores, strict=True):
            axis.plot(score.tested_interval or (), [place, place], "-", color=BLUE, lw=1.2)
            axis.plot(
                score.difference or 0.0,
                place,
                "o",
                color=BLUE,
                mfc=BLUE if score.significant else "white",
            )
        axis.set_yticks(places, own_labels)
        axis.set_ylim(len(lines) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        better = " (lower is better)" if scores[0].lower_is_better else ""
        filled = (
            ""
            if all(score.p_holm is None for score in scores)
            else "; filled: significant after Holm"
        )
        of = f"difference of {quantity(scores[0].metric)}{better}, 95% interval{filled}"
        axis.set(title=name, xlabel=of)
    return figure


def _label_with_p(line: ScoreLine) -> str:
    """The label of a difference, with its corrected p if it has one."""
    if line.score.p_holm is None:
        return wrapped_label(line.label)
    return wrapped_label(f"{line.label}, p = {line.score.p_holm:.2g}")


def _label_height(label: str) -> float:
    """The inches of a line of a panel with this label."""
    return 0.12 + 0.12 * len(label.split("\n"))
