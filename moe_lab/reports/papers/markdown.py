"""The table of an experiment as Markdown: measured and published values side by side."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template

from moe_lab.reports.columns import texts
from moe_lab.reports.papers.cells import NOTE
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.files import column_lines, table_lines
from moe_lab.reports.papers.table import NOTHING_STORED, Row, Table
from moe_lab.reports.scores import EXPLAINED
from moe_lab.results.measured import interval_text, number
from moe_lab.results.score import AVERAGE, Score
from moe_lab.results.score_table import explained_marks


def markdown(experiment: Experiment, table: Table) -> str:
    """The Markdown file, of `table.md.j2`."""
    cells = [row for row in table.rows if not row.average]
    measured = [row.score for row in cells if row.score]
    compared = [
        score for row in table.shown for score in (row.score, *row.compared.values()) if score
    ]
    header = ["quantity", "model, task", "measured", "published", "place"]
    file = Path(__file__).with_name("table.md.j2")
    options: dict[str, Any] = dict(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = Template(file.read_text(encoding="utf-8"), **options).render(
        table=table,
        cells=cells,
        measured=measured,
        average_note=NOTE,
        correction_note=correction_note(compared),
        grid=_grid(experiment, table),
        metrics=_metrics(experiment, cells),
        stated=table_lines(header, map(_stated, table.stated)),
        marks=explained_marks(mark for score in measured for mark in score.marks),
        failed=[
            f"{', '.join(row.coordinates.values())}: {row.problem}" for row in cells if row.problem
        ],
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _grid(experiment: Experiment, table: Table) -> str:
    shown, others = table.shown, table.compared
    across = [key for key in experiment.keys if key not in experiment.rows]
    named = [key for key in experiment.rows if any(row.coordinates[key] != "-" for row in shown)]
    by_place = {(_key(row, named), _key(row, across)): row for row in shown}
    lines = list(dict.fromkeys(line for line, _ in by_place))
    columns = list(dict.fromkeys(column for _, column in by_place))
    header = [*named, "documents", "seeds"]
    for name in (_column_name(across, column) for column in columns):
        minus = [f"{name} - {other.replace('_', ' ')}" for other in ("base", *others)]
        header += [name, f"{name}, published", *minus]
    printed = any(row.published for row in shown)
    rows = []
    for line in lines:
        cells = [by_place.get((line, column)) for column in columns]
        own = (
            _texts(cell, others, printed) if cell else [""] * (3 + len(others)) for cell in cells
        )
        rows.append([*line, *_counts([cell for cell in cells if cell]), *chain.from_iterable(own)])
    return column_lines(list(map(texts, header, zip(*rows, strict=True))))


def _texts(row: Row, others: Sequence[str], printed: bool) -> list[str]:
    """The texts of a cell's columns: measured, published, difference to base and to each other run."""
    published = "-" if printed and not row.of_training else ""
    if row.published is not None:
        published = " ".join(filter(None, [f"{row.published.fraction:.4g}", row.published.mark]))
    if row.score is None:
        return ["failed" if row.problem else "missing", published, *[""] * (1 + len(others))]
    value = " ".join([_value(row.score), *row.score.marks])
    compared = [difference_text(row.compared.get(other)) for other in others]
    return [value, published, difference_text(row.score), *compared]


def _value(score: Score) -> str:
    if score.value is None:
        return "-"
    error = "" if score.stderr is None else f"({number(score.stderr)})"
    spread = "" if score.std is None else f"± {number(score.std)}"
    over_seeds = (
        "" if score.seed_interval is None else f"seeds {interval_text(score.seed_interval)}"
    )
    return " ".join(
        filter(
            None, [number(score.value), error, spread, interval_text(score.interval), over_seeds]
        )
    )


def _counts(cells: Sequence[Row]) -> list[str]:
    """The columns `documents` and `seeds` of a line; of its averages if it has no other cells.

    `seeds` is empty if every cell is one run.
    """
    counted = [row for row in cells if not row.average] or cells
    scores = [row.score for row in counted if row.score]
    documents = dict.fromkeys(str(score.n) for score in scores if score.n is not None)
    seeds = dict.fromkeys(str(score.seeds) for score in scores)
    return [
        "/".join(documents) or "-",
        "/".join(seeds) if any(score.seeds > 1 for score in scores) else "",
    ]


def _column_name(keys: Sequence[str], column: tuple[str, ...]) -> str:
    """Options by their name, dotted keys as `n=8`; a dash is left out."""
    shown = [(key, value) for key, value in zip(keys, column, strict=True) if value != "-"]
    return " ".join(
        f"{key.rpartition('.')[2]}={value}" if "." in key else value for key, value in shown
    )


def _key(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(row.coordinates[name] for name in names)


def correction_note(scores: Iterable[Score]) -> str:
    """A paragraph about p and bold differences; empty for a table without a p."""
    scores = [score for score in scores if score.p_holm is not None]
    counts = {score.question: score.family or 1 for score in scores}
    named = ", ".join(f"{question}: {count}" for question, count in counts.items())
    note = f"Bold differences are statistically significant. {EXPLAINED} Comparisons: {named}."
    if any(score.test == AVERAGE for score in scores):
        note += " For an average over tasks, p belongs to its interval."
    return note if scores else ""


def difference_text(score: Score | None) -> str:
    """The difference with its interval and p as Markdown, bold where it is significant; empty without one."""
    if score is None or score.difference is None:
        return ""
    text = f"{number(score.difference, sign=True)} {interval_text(score.tested_interval, sign=True)}".rstrip()
    text += f" over {score.tested_over}" if score.tested_interval and score.seeds > 1 else ""
    if score.equal:
        return f"{text} (equal within rounding)"
    if score.p is None or score.p_holm is None:
        return text
    shown = f"**{text}**" if score.significant else text
    holm = f", Holm {score.p_holm:.3g}" if (score.family or 1) > 1 else ""
    return f"{shown} (p={score.p:.3g}{holm})"


def _metrics(experiment: Experiment, cells: Sequence[Row]) -> list[str]:
    """The metric of each column. If a column has several metrics, each is listed with its tasks."""
    across = [key for key in experiment.keys if key not in experiment.rows]
    found: dict[str, dict[str, list[str]]] = {}
    for row in cells:
        if row.score is not None and row.shows:
            task = row.coordinates.get("task", "-")
            chance = experiment.chance.get(task) if row.metric == "headline" else None
            metric = row.shows + ("" if chance is None else f", {chance:g} by chance")
            column = found.setdefault(_column_name(across, _key(row, across)), {})
            column.setdefault(metric, []).append(row.score.task)
    lines = []
    for name, metrics in found.items():
        named = (
            f"{metric} ({', '.join(dict.fromkeys(tasks))})" for metric, tasks in metrics.items()
        )
        lines.append(f"{name}: {'; '.join(named if len(metrics) > 1 else metrics)}")
    return lines


def _stated(row: Row) -> list[str]:
    """The line of a number in the text of the paper."""
    published = row.published
    assert published is not None
    where, measured = (
        ", ".join(row.coordinates.get(key, "-") for key in ("model", "task")),
        "not run",
    )
    if row.score is not None and row.score.value is not None:
        scaled = row.score.value * (100 if published.unit == "percent" else 1)
        measured = f"{scaled:.3g} {published.unit}"
    elif row.reason == NOTHING_STORED:
        where = "-"
    else:
        measured = f"not measured: {row.reason}"
    place = " ".join(filter(None, [published.place, published.mark]))
    return [row.metric, where, measured, f"{published.value:g} {published.unit}", place]
