"""Tables that list settings and have no cells: `figure: recipe`, `references` and `setup`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.files import file_stem, title
from moe_lab.reports.papers.markdown_tables import table_lines
from moe_lab.results.atomic import write_file, write_rows
from moe_lab.results.model import RunResult
from moe_lab.results.scores import scores_of


def write_settings(
    experiment: Experiment,
    scale: str,
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    problems: Sequence[str] = (),
) -> list[Path]:
    """Write rows that share their keys as `<stem>.md` and `<stem>.csv`; returns both paths."""
    stem = file_stem(experiment, scale)
    names = list(rows[0])
    # a published 100.0 is the setting 100
    settings = [_with_whole_numbers(row) for row in rows]

    header = [name.replace("_", " ") for name in names]
    cells = []
    for row in settings:
        cells.append([_text(row[name]) for name in names])
    lines = [f"# {title(experiment, scale)}", "", experiment.source, "", table_lines(header, cells)]
    if problems:
        lines += ["", "Failed cells:", ""]
        lines += [f"- {problem}" for problem in problems]

    markdown = write_file(folder / f"{stem}.md", "\n".join(lines) + "\n")
    return [markdown, write_rows(settings, folder / f"{stem}.csv")]


def _with_whole_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with floats that are whole numbers as int."""
    settings = {}
    for name, value in row.items():
        is_whole = isinstance(value, float) and value.is_integer()
        settings[name] = int(value) if is_whole else value
    return settings


def _text(value: Any) -> str:
    """A setting as text; a missing one is a dash."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value or "-")


def reference_rows(experiment: Experiment, cells: Sequence[TableCell]) -> list[dict[str, object]]:
    """The benchmarks and reference sets with their sizes here and in the paper (C3PO, Table 7).

    One row per benchmark and reference set: evaluated documents, and available, asked and kept
    references. None for numbers that do not exist: unpublished ones, and the counts of a run whose
    answers were all stored.
    """
    published = {}
    for entry in experiment.paper:
        for quantity, name in entry.cell.items():
            published[quantity, name] = int(entry.value)

    rows = []
    for cell in cells:
        if not cell.results:
            continue
        result = cell.results[0]
        task = cell.coordinates["task"]
        for source in _reference_sources(result):
            row = {
                "model": result.model.name,
                "task": task,
                "documents": scores_of(result)[0].n,
                "published_documents": published.get(("documents", task)),
                "reference": source["title"],
                "available": source["documents"],
                "test_documents": source["dropped"],
                "asked": source["asked"],
                "published_asked": published.get(("references", source["title"])),
                "kept": source.get("correct"),
                "data": ", ".join(source.get("data", [])),
            }
            rows.append(row)
    return rows


def _reference_sources(result: RunResult) -> Sequence[Mapping[str, Any]]:
    """The data sets of a run's reference set, as the method reports them."""
    reference = result.report.get("reference") or {}
    reference_set = reference.get("set") or {}
    sources: Sequence[Mapping[str, Any]] = reference_set.get("sources", [])
    return sources
