"""Table 7 of the C3PO paper: benchmarks and reference sets with their sizes here and in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.table_files import file_stem, title, typed_lines, write_rows_table
from moe_lab.reports.scores import scores_of

COLUMNS = {
    "model": "model",
    "task": "benchmark",
    "documents": "documents",
    "published_documents": "paper",
    "reference": "reference set",
    "available": "documents there",
    "test_documents": "of these, test documents",
    "asked": "asked",
    "published_asked": "paper",
    "kept": "answered correctly",
    "absent": "absent tasks",
}


def write_references(
    experiment: Experiment, cells: Sequence[TableCell], folder: Path, scale: str
) -> list[Path]:
    """Write `<name>-<scale>.md` and `.csv` of the cells of C3PO that have results; nothing without one."""
    rows = reference_rows(experiment, cells)
    if not rows:
        return []
    return write_rows_table(
        folder, file_stem(experiment, scale), _lines(experiment, scale, rows, cells), rows
    )


def reference_rows(experiment: Experiment, cells: Sequence[TableCell]) -> list[dict[str, Any]]:
    """One row per benchmark and reference set: documents evaluated, and references available, asked and kept.

    A number that does not exist is None: an unpublished one, or the counts of a run whose answers were all stored.
    """
    rows = []
    for cell in cells:
        block = cell.results[0]["moe_lab"] if cell.results else {}
        reference_set = (block.get("c3po", {}).get("reference") or {}).get("set") or {}
        for source in reference_set.get("sources", []):
            rows.append(
                {
                    "model": block["model"]["name"],
                    "task": cell.coordinates["task"],
                    "documents": scores_of(cell.results[0])[0].n,
                    "published_documents": _published(experiment, cell.coordinates["task"], "documents"),
                    "reference": source["title"],
                    "available": source["documents"],
                    "test_documents": source["dropped"],
                    "asked": source["asked"],
                    "published_asked": _published(experiment, source["title"], "references"),
                    "kept": source.get("correct"),
                    "absent": ", ".join(source["absent"]),
                }
            )
    return rows


def _published(experiment: Experiment, name: str, quantity: str) -> int | None:
    for each in experiment.paper:
        if each.cell.get(quantity) == name:
            return int(each.value)
    return None


def _lines(
    experiment: Experiment, scale: str, rows: Sequence[dict[str, Any]], cells: Sequence[TableCell]
) -> list[str]:
    lines = [
        f"# {title(experiment, scale)}",
        "",
        experiment.source,
        "",
        *typed_lines(experiment),
        f"| {' | '.join(COLUMNS.values())} |",
        "|" + " --- |" * len(COLUMNS),
        *(f"| {' | '.join(_text(row[key]) for key in COLUMNS)} |" for row in rows),
    ]
    problems = [f"- {cell.name}: {cell.problem}" for cell in cells if cell.problem]
    return lines + (["", "Failed cells:", "", *problems] if problems else [])


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value or "-")
