"""Forest plots of differences to another run, one panel per task and metric."""

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moe_lab.reports.figures.fit import fit, wrapped_label
from moe_lab.reports.figures.panels import stacked_panels
from moe_lab.reports.figures.style import BLUE, GREY, styled
from moe_lab.reports.papers.units import quantity
from moe_lab.reports.plotted import difference_panels, panel_title
from moe_lab.reports.score_line import ScoreLine
from moe_lab.results.score import Score


def differences_figure(lines: Iterable[ScoreLine]) -> Figure:
    """The differences as points with their intervals, the largest of a panel first.

    There is at least one.
    """
    groups = difference_panels(lines)
    titles = [panel_title(group) for group in groups]
    with styled():
        figure = draw_differences(groups, titles)
        fit(figure)
    return figure


def draw_differences(
    groups: Sequence[Sequence[ScoreLine]], titles: Sequence[str], title: str = ""
) -> Figure:
    """A panel for each group: its lines in their order with their corrected p, and a line at 0.

    A point is filled where the difference is significant.
    """
    heights = [_panel_height(lines) for lines in groups]
    height = sum(heights)
    if title:
        height += 0.3
    figure, axes = stacked_panels(height, heights, title)
    for axis, lines, panel_name in zip(axes, groups, titles, strict=True):
        _draw_panel(axis, lines)
        axis.set(title=panel_name, xlabel=_axis_label([line.score for line in lines]))
    return figure


def _draw_panel(axis: Axes, lines: Sequence[ScoreLine]) -> None:
    """The lines of a panel from top to bottom, each a point with its interval."""
    axis.axvline(0, color=GREY, ls=":", lw=1.1)
    for place, line in enumerate(lines):
        score = line.score
        fill = BLUE if score.significant else "white"
        axis.plot(score.tested_interval or (), [place, place], "-", color=BLUE, lw=1.2)
        axis.plot(score.difference or 0.0, place, "o", color=BLUE, mfc=fill)
    axis.set_yticks(range(len(lines)), [_label_with_p(line) for line in lines])
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def _axis_label(scores: Sequence[Score]) -> str:
    """What the axis shows, whether lower is better, and what a filled point means."""
    label = f"difference of {quantity(scores[0].metric)}"
    if scores[0].lower_is_better:
        label += " (lower is better)"
    label += ", 95% interval"
    if any(score.p_holm is not None for score in scores):
        label += "; filled: significant after Holm"
    return label


def _label_with_p(line: ScoreLine) -> str:
    """The label of a difference, with its corrected p if it has one."""
    if line.score.p_holm is None:
        return wrapped_label(line.label)
    return wrapped_label(f"{line.label}, p = {line.score.p_holm:.2g}")


def _panel_height(lines: Sequence[ScoreLine]) -> float:
    """The inches of a panel with these lines."""
    return sum(_line_height(_label_with_p(line)) for line in lines) + 0.8


def _line_height(label: str) -> float:
    """The inches of a line of a panel with this label."""
    return 0.12 + 0.12 * len(label.split("\n"))
