"""Tables of settings: the reference sets, and recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.files import file_stem, table_lines, title, typed_lines, write_rows_table
from moe_lab.results.scores import scores_of

# Table 7 of the C3PO paper: benchmarks and reference sets with their sizes here and in the paper

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
    "data": "from",
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


def reference_rows(experiment: Experiment, cells: Sequence[TableCell]) -> list[dict[str, object]]:
    """One row per benchmark and reference set: evaluated documents, and available, asked and kept references.

    None for numbers that do not exist: unpublished ones, and the counts of a run whose answers were all stored.
    """
    rows = []
    for cell in cells:
        if not cell.results:
            continue
        reference_set = (cell.results[0].report.get("reference") or {}).get("set") or {}
        for source in reference_set.get("sources", []):
            rows.append(
                {
                    "model": cell.results[0].model,
                    "task": cell.coordinates["task"],
                    "documents": scores_of(cell.results[0])[0].n,
                    "published_documents": _published(experiment, cell.coordinates["task"], "documents"),
                    "reference": source["title"],
                    "available": source["documents"],
                    "test_documents": source["dropped"],
                    "asked": source["asked"],
                    "published_asked": _published(experiment, source["title"], "references"),
                    "kept": source.get("correct"),
                    "data": ", ".join(source.get("data", [])),
                }
            )
    return rows


def _published(experiment: Experiment, name: str, quantity: str) -> int | None:
    for each in experiment.paper:
        if each.cell.get(quantity) == name:
            return int(each.value)
    return None


def _lines(
    experiment: Experiment, scale: str, rows: Sequence[Mapping[str, object]], cells: Sequence[TableCell]
) -> list[str]:
    lines = [
        f"# {title(experiment, scale)}",
        "",
        experiment.source,
        "",
        *typed_lines(experiment),
        *table_lines(
            list(COLUMNS.values()), ([_reference_text(row[key]) for key in COLUMNS] for row in rows)
        ),
    ]
    problems = [f"- {cell.name}: {cell.problem}" for cell in cells if cell.problem]
    return lines + (["", "Failed cells:", "", *problems] if problems else [])


def _reference_text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value or "-")


# The papers' tables of settings next to this package's: Table 1 of RoE and of MoE-Bench. They need no runs

HEADINGS = {
    "n": "N (routing samples)",
    "max_temperature": "T (highest temperature)",
    "skip_layers": "L (layers skipped at each end)",
    "cache": "cache",
    "num_samples": "tuning documents",
    "n_trials": "trials",
    "metric": "tuned on",
}
NAMES = {"metric": ("accuracy", "perplexity"), "cache": ("clean", "standard")}
"""The meaning of 0 and 1."""


def write_setup(
    experiment: Experiment, rows: Sequence[Mapping[str, object]], folder: Path, scale: str
) -> list[Path]:
    """RoE's Table 1 and the presets; `rows` have category, model, quantity, value, published, place."""
    return write_rows_table(folder, file_stem(experiment, scale), _setup_lines(experiment, rows), rows)


def write_recipe(
    experiment: Experiment, rows: Sequence[Mapping[str, object]], folder: Path, scale: str
) -> list[Path]:
    """MoE-Bench's Table 1 and the defaults of finetune-freeze; `rows` have setting, value, published, place."""
    lines = [f"# {experiment.title}", "", experiment.source, ""]
    lines += ["| setting | here | paper |", "|---|---:|---:|"]
    lines += [f"| `{row['setting']}` | {row['value']:g} | {row['published']:g} |" for row in rows]
    return write_rows_table(folder, file_stem(experiment, scale), lines, rows)


def _setup_lines(experiment: Experiment, rows: Sequence[Mapping[str, object]]) -> list[str]:
    by_place = {(row["category"], row["model"], row["quantity"]): row for row in rows}
    places = list(dict.fromkeys((category, model) for category, model, _ in by_place))
    quantities = [name for name in HEADINGS if any(quantity == name for *_, quantity in by_place)]
    explained = "The defaults of tuning. If the paper has another number, it follows in brackets."
    texts = [
        [*map(str, place), *(_setting_text(by_place.get((*place, name))) for name in quantities)]
        for place in places
    ]
    header = ["category", "model", *(HEADINGS[name] for name in quantities)]
    return [f"# {experiment.title}", "", experiment.source, "", explained, "", *table_lines(header, texts)]


def _setting_text(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    names = NAMES.get(row["quantity"])
    own, published = (names[int(row[key])] if names else f"{row[key]:g}" for key in ("value", "published"))
    return own if own == published else f"{own} (paper: {published})"
