"""`outputs/tables/index.html`: every table and figure of the folder, published and measured numbers side by side."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.figure_kinds import FIGURES
from moe_lab.reports.pages.page import (
    UNEXPECTED,
    latex_of_rows,
    left_out,
    picture_uri,
    rendered,
    text_uri,
    write_text,
)
from moe_lab.reports.pages.record import (
    AGREES,
    DISAGREES,
    FAILED,
    NOT_AT_SCALE,
    NOT_RUN,
    STATES,
    axes_of,
    columns_of,
    latex_row,
    read_records,
    rows_of,
)
from moe_lab.reports.pages.verdict import BETTER, NOT_SIGNIFICANT, WORSE, Compared, verdicts
from moe_lab.reports.papers.metrics import EXPERT
from moe_lab.reports.papers.ranking import EXPLAINED
from moe_lab.results.scores import MARKS, Score
from moe_lab.results.stored_files import warn_once

PAPERS = {"roe": "RoE", "c3po": "C3PO", "moe_bench": "MoE-Bench"}
"""Names of the folders of `experiments/`; another folder is its own name."""


def write_tables_page(folder: Path) -> Path:
    """Write `index.html` from the records in the folder, and return its path. Raises ResultsError.

    A record that cannot be shown is named on stderr and left out.
    """
    records = read_records(folder)
    try:
        text = _text_of(records, folder)
    except UNEXPECTED:
        text = _text_of([record for record in records if _can_be_shown(record, folder)], folder)
    return write_text(folder / "index.html", text)


def _can_be_shown(record: dict[str, Any], folder: Path) -> bool:
    try:
        _text_of([record], folder)
    except UNEXPECTED as error:
        warn_once(f"{left_out(folder / record['stem'], error)}. It is left out.")
        return False
    return True


def _text_of(records: Sequence[dict[str, Any]], folder: Path) -> str:
    records = sorted(records, key=_order)
    tables = [_table(record, folder) for record in records]
    found = verdicts(compared_scores(records))
    return rendered(
        "tables.html.j2",
        papers=_by_paper(tables),
        summary=summary(tables),
        states=STATES,
        verdicts={
            kind: [each for each in found if each.outcome == kind]
            for kind in (BETTER, WORSE, NOT_SIGNIFICANT)
        },
        count=len(found),
        marks=_marks(records),
        explained=EXPLAINED,
        scales=list(dict.fromkeys(record["scale"] for record in records)),
    )


def compared_scores(records: Sequence[dict[str, Any]]) -> list[Compared]:
    """The scores of all tables; a run in several tables counts once.

    Averages are left out, and expert metrics, of which more is neither better nor worse.
    """
    found: dict[tuple[str, str, str], Compared] = {}
    for record in records:
        for cell in record["cells"]:
            if cell["average"] or cell["score"] is None:
                continue
            score = Score(**cell["score"] | {"marks": tuple(cell["score"]["marks"])})
            if score.metric.startswith(EXPERT):
                continue
            place = (score.run_id, score.task, score.metric)
            found.setdefault(place, Compared(_name(cell, score), score, cell["lower_is_better"]))
    return list(found.values())


def summary(tables: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells by paper: how many there are, are measured, agree, disagree, cannot be compared, and are empty."""
    lines = []
    for paper in dict.fromkeys(table["paper"] for table in tables):
        counts = Counter(row.state for table in tables if table["paper"] == paper for row in table["rows"])
        cells = counts.total() - counts[NOT_AT_SCALE]
        empty = counts[FAILED] + counts[NOT_RUN]
        compared = counts[AGREES] + counts[DISAGREES]
        lines.append(
            {
                "paper": paper,
                "cells": cells,
                "measured": cells - empty,
                "agree": counts[AGREES],
                "disagree": counts[DISAGREES],
                "incomparable": cells - empty - compared,
                "failed": counts[FAILED],
                "not_run": counts[NOT_RUN],
                "elsewhere": counts[NOT_AT_SCALE],
            }
        )
    return lines


def _table(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the template shows of a table."""
    stem = folder / record["stem"]
    text = _text(stem.with_name(f"{stem.name}.csv"))
    rows = rows_of(record)
    axes = axes_of(record, rows)
    listed = list(csv.DictReader(text.splitlines())) if record["of_settings"] and text else []
    shown = listed or [latex_row(row, axes) for row in rows if row.score is not None]
    pictures = [stem.with_name(f"{stem.name}-{kind}.png") for kind in FIGURES]
    return {
        **record,
        "paper": PAPERS.get(record["paper"], record["paper"]),
        "axes": axes,
        "rows": rows,
        "columns": columns_of(rows),
        "listed": listed,
        "measured": sum(row.score is not None for row in rows),
        "pictures": [picture_uri(picture) for picture in pictures if picture.is_file()],
        "csv": text_uri(text, "csv") if text else None,
        "latex": text_uri(latex_of_rows(shown, record["title"]), "x-tex") if shown else None,
        "shows": list(dict.fromkeys(cell["shows"] for cell in record["cells"] if cell["shows"])),
    }


def _by_paper(tables: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {
        paper: [table for table in tables if table["paper"] == paper]
        for paper in dict.fromkeys(table["paper"] for table in tables)
    }


def _name(cell: dict[str, Any], score: Score) -> str:
    """Method, task, and the cell's other coordinates, dotted keys with their names."""
    rest = [
        f"{key.rpartition('.')[2]}={value}" if "." in key else value
        for key, value in cell["coordinates"].items()
        if value not in ("-", score.method, score.task)
    ]
    return f"{score.method} on {score.task}" + (f" ({', '.join(rest)})" if rest else "")


def _marks(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the marks that appear mean."""
    seen = {
        mark
        for record in records
        for cell in record["cells"]
        for mark in (cell["score"] or {}).get("marks", [])
    }
    return [text for mark, text in MARKS.items() if mark in seen]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _order(record: dict[str, Any]) -> tuple[int, list[Any]]:
    """A key that orders by paper, and `table2` before `table10`."""
    paper = [*PAPERS, record["paper"]].index(record["paper"])
    return paper, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", record["stem"])]
