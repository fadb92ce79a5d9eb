"""The table of an experiment as Markdown: measured and published values side by side."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template

from moe_lab.reports.columns import texts
from moe_lab.reports.papers.averages import NOTE
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.markdown_tables import column_lines, table_lines
from moe_lab.reports.papers.metric_names import HEADLINE
from moe_lab.reports.papers.published import Published, with_mark
from moe_lab.reports.papers.rows import NOTHING_STORED, Row
from moe_lab.reports.papers.table import Table
from moe_lab.reports.verdicts import EXPLAINED
from moe_lab.results.measured import interval_text, number
from moe_lab.results.model import BASE
from moe_lab.results.score import AVERAGE, Score
from moe_lab.results.score_table import explained_marks

STATED_HEADER = ["quantity", "model, task", "measured", "published", "place"]
Place = tuple[str, ...]
"""The coordinates of a line or a column."""


def markdown(experiment: Experiment, table: Table) -> str:
    """The Markdown file, of `table.md.j2`."""
    cells = [row for row in table.rows if not row.average]
    measured = [row.score for row in cells if row.score]
    marks: list[str] = []
    for score in measured:
        marks += score.marks
    failed = []
    for row in cells:
        if row.problem:
            failed.append(f"{', '.join(row.coordinates.values())}: {row.problem}")

    file = Path(__file__).with_name("table.md.j2")
    options: dict[str, Any] = dict(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = Template(file.read_text(encoding="utf-8"), **options).render(
        table=table,
        cells=cells,
        measured=measured,
        average_note=NOTE,
        correction_note=correction_note(_compared_scores(table)),
        grid=_grid(experiment, table),
        metrics=_metrics(experiment, cells),
        stated=table_lines(STATED_HEADER, [_stated(row) for row in table.stated]),
        marks=explained_marks(marks),
        failed=failed,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _compared_scores(table: Table) -> list[Score]:
    """The scores of the rows that are shown, with their comparisons with other runs."""
    scores = []
    for row in table.shown:
        if row.score is not None:
            scores.append(row.score)
        scores += row.compared.values()
    return scores


def _grid(experiment: Experiment, table: Table) -> str:
    """The cells as a Markdown table.

    There is a line for each place on the rows' axes, and several columns for each place on the
    other axes.
    """
    column_axes = _column_axes(experiment)
    line_axes = []
    for axis in experiment.rows:
        if any(row.coordinates[axis] != "-" for row in table.shown):
            line_axes.append(axis)

    by_place: dict[tuple[Place, Place], Row] = {}
    for row in table.shown:
        by_place[_place(row, line_axes), _place(row, column_axes)] = row
    line_places = dict.fromkeys(line for line, _ in by_place)
    column_places = dict.fromkeys(column for _, column in by_place)

    header = [*line_axes, "documents", "seeds"]
    for column in column_places:
        header += _headings(_column_name(column_axes, column), table.compared)

    has_published = any(row.published for row in table.shown)
    lines = []
    for line in line_places:
        rows = [by_place.get((line, column)) for column in column_places]
        cells = [*line, *_counts([row for row in rows if row])]
        for optional_row in rows:
            cells += _texts(optional_row, table.compared, has_published)
        lines.append(cells)
    cells_of_columns = zip(*lines, strict=True)
    columns = [
        texts(heading, cells) for heading, cells in zip(header, cells_of_columns, strict=False)
    ]
    return column_lines(columns)


def _column_axes(experiment: Experiment) -> list[str]:
    """The axes of the cells that are not rows."""
    return [key for key in experiment.keys if key not in experiment.rows]


def _headings(name: str, compared: Sequence[str]) -> list[str]:
    """The headings of a cell's columns (`_texts`)."""
    headings = [name, f"{name}, published"]
    for other in (BASE, *compared):
        headings.append(f"{name} - {other.replace('_', ' ')}")
    return headings


def _texts(row: Row | None, compared: Sequence[str], has_published: bool) -> list[str]:
    """The texts of a cell's columns: measured, published, difference to base and to each other run.

    Args:
        compared: the other runs.
        has_published: whether the table has any published number. Then a missing one is a dash.
    """
    if row is None:
        return [""] * (3 + len(compared))
    published = ""
    if row.published is not None:
        published = with_mark(f"{row.published.fraction:.4g}", row.published.mark)
    elif has_published and not row.of_training:
        published = "-"
    if row.score is None:
        state = "failed" if row.problem else "missing"
        return [state, published, *[""] * (1 + len(compared))]

    value = " ".join([_value(row.score), *row.score.marks])
    differences = [difference_text(row.score)]
    differences += [difference_text(row.compared.get(other)) for other in compared]
    return [value, published, *differences]


def _value(score: Score) -> str:
    """The value with its standard error, its spread over seeds, and its intervals."""
    if score.value is None:
        return "-"
    parts = [number(score.value)]
    if score.stderr is not None:
        parts.append(f"({number(score.stderr)})")
    if score.std is not None:
        parts.append(f"± {number(score.std)}")
    parts.append(interval_text(score.interval))
    if score.seed_interval is not None:
        parts.append(f"seeds {interval_text(score.seed_interval)}")
    return " ".join(part for part in parts if part)


def _counts(rows: Sequence[Row]) -> list[str]:
    """The columns `documents` and `seeds` of a line; of its averages if it has no other cells.

    `seeds` is empty if every cell is one run.
    """
    counted = [row for row in rows if not row.average] or rows
    scores = [row.score for row in counted if row.score]
    documents = dict.fromkeys(str(score.n) for score in scores if score.n is not None)
    seeds = ""
    if any(score.seeds > 1 for score in scores):
        seeds = "/".join(dict.fromkeys(str(score.seeds) for score in scores))
    return ["/".join(documents) or "-", seeds]


def _column_name(axes: Sequence[str], column: Place) -> str:
    """Options by their name, dotted keys as `n=8`; a dash is left out."""
    parts = []
    for axis, value in zip(axes, column, strict=True):
        if value == "-":
            continue
        parts.append(f"{axis.rpartition('.')[2]}={value}" if "." in axis else value)
    return " ".join(parts)


def _place(row: Row, axes: Sequence[str]) -> Place:
    """The coordinates of a row on some axes."""
    return tuple(row.coordinates[axis] for axis in axes)


def correction_note(scores: Iterable[Score]) -> str:
    """A paragraph about p and bold differences; empty for a table without a p."""
    tested = [score for score in scores if score.p_holm is not None]
    if not tested:
        return ""
    sizes = {score.question: score.family or 1 for score in tested}
    counts = ", ".join(f"{question}: {size}" for question, size in sizes.items())
    note = f"Bold differences are statistically significant. {EXPLAINED} Comparisons: {counts}."
    if any(score.test == AVERAGE for score in tested):
        note += " For an average over tasks, p belongs to its interval."
    return note


def difference_text(score: Score | None) -> str:
    """The difference with its interval and p as Markdown, bold where it is significant.

    Empty without one.
    """
    if score is None or score.difference is None:
        return ""
    interval = interval_text(score.tested_interval, sign=True)
    text = f"{number(score.difference, sign=True)} {interval}".rstrip()
    if score.tested_interval and score.seeds > 1:
        text += f" over {score.tested_over}"
    if score.equal:
        return f"{text} (equal within rounding)"
    if score.p is None or score.p_holm is None:
        return text

    if score.significant:
        text = f"**{text}**"
    p_text = f"p={score.p:.3g}"
    if (score.family or 1) > 1:
        p_text += f", Holm {score.p_holm:.3g}"
    return f"{text} ({p_text})"


def _metrics(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """The metric of each column. If a column has several metrics, each is listed with its tasks."""
    column_axes = _column_axes(experiment)
    tasks_by_metric: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row.score is None or not row.shows:
            continue
        metrics = tasks_by_metric.setdefault(
            _column_name(column_axes, _place(row, column_axes)), {}
        )
        metrics.setdefault(_metric_with_chance(experiment, row), []).append(row.score.task)

    lines = []
    for column, metrics in tasks_by_metric.items():
        names = list(metrics)
        if len(metrics) > 1:
            names = [f"{name} ({', '.join(dict.fromkeys(metrics[name]))})" for name in metrics]
        lines.append(f"{column}: {'; '.join(names)}")
    return lines


def _metric_with_chance(experiment: Experiment, row: Row) -> str:
    """The metric of a row with its unit, and the accuracy of random answers if it is known."""
    chance = experiment.chance.get(row.coordinates.get("task", "-"))
    if row.metric != HEADLINE or chance is None:
        return row.shows or ""
    return f"{row.shows}, {chance:g} by chance"


def _stated(row: Row) -> list[str]:
    """The line of a number in the text of the paper."""
    published = row.published
    assert published is not None
    where = ", ".join(row.coordinates.get(key, "-") for key in ("model", "task"))
    if row.reason == NOTHING_STORED and (row.score is None or row.score.value is None):
        where = "-"
    place = with_mark(published.place, published.mark)
    printed = f"{published.value:g} {published.unit}"
    return [row.metric, where, _measured(row, published), printed, place]


def _measured(row: Row, published: Published) -> str:
    """The measured value of a stated number in its unit, or why there is none."""
    if row.score is not None and row.score.value is not None:
        scale = 100 if published.unit == "percent" else 1
        return f"{row.score.value * scale:.3g} {published.unit}"
    if row.reason == NOTHING_STORED:
        return "not run"
    return f"not measured: {row.reason}"
