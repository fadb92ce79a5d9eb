"""The files of a paper's table: their names, and tables of settings."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.columns import Column
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.results.atomic import write_file, write_rows
from moe_lab.results.identity import RUNTIME
from moe_lab.results.names import folder_name
from moe_lab.results.scores import scores_of

# The files of an experiment's table: their names

SAME_TABLE = RUNTIME - {"baseline", "metrics", "seeds", "tuning"} | {"data_dir"}
"""Keys that change neither the numbers nor the contents of a table. Results of local files and of the hub share one."""
SAME_NUMBERS = ("model.attn_implementation", "model.device_map", "model.experts_implementation")
LONGEST = 60
"""Most characters of the typed overrides in a file's name."""


def typed_settings(overrides: Sequence[str]) -> list[str]:
    """The typed overrides that change a table, sorted, each once."""
    typed = {
        text: text.partition("=")[0].partition("@")[0]
        for text in (one.lstrip("+") for one in overrides)
    }
    same = SAME_TABLE | {"hydra"}
    return sorted(
        text
        for text, key in typed.items()
        if re.split(r"[./]", key)[0] not in same and key not in SAME_NUMBERS
    )


def file_stem(experiment: Experiment, scale: str) -> str:
    """The name of an experiment's files: `<folder>-<name>-<scale>`, then the typed overrides and a hash of them."""
    plain = f"{experiment.name.replace('/', '-')}-{scale}"
    if not experiment.typed:
        return plain
    digest = hashlib.sha256("\n".join(experiment.typed).encode()).hexdigest()
    return folder_name(plain, "-".join(experiment.typed)[:LONGEST], digest=digest)


def title(experiment: Experiment, scale: str) -> str:
    """The title of a table: the experiment's title, the scale, and the typed overrides."""
    return f"{experiment.title} ({', '.join([f'scale {scale}', *experiment.typed])})"


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines
    )


def column_lines(columns: Sequence[Column]) -> str:
    """Columns as a table in Markdown, without those that are empty."""
    shown = [column for column in columns if column.shown]
    return table_lines(
        [column.heading for column in shown], zip(*(column.cells for column in shown), strict=True)
    )


def write_settings(
    experiment: Experiment,
    scale: str,
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    problems: Sequence[str] = (),
) -> list[Path]:
    """Write rows that share their keys as `<stem>.md` and `<stem>.csv`; returns both paths."""
    stem, names = file_stem(experiment, scale), list(rows[0])
    rows = [
        # a published 100.0 is the setting 100
        {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in row.items()}
        for row in rows
    ]
    header = [name.replace("_", " ") for name in names]
    lines = [f"# {title(experiment, scale)}", "", experiment.source, ""]
    lines.append(table_lines(header, ([_setting(row[name]) for name in names] for row in rows)))
    lines += (
        ["", "Failed cells:", "", *(f"- {problem}" for problem in problems)] if problems else []
    )
    markdown = write_file(folder / f"{stem}.md", "\n".join(lines) + "\n")
    return [markdown, write_rows(rows, folder / f"{stem}.csv")]


def _setting(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value or "-")


# Table 7 of the C3PO paper: benchmarks and reference sets with their sizes here and in the paper


def reference_rows(experiment: Experiment, cells: Sequence[TableCell]) -> list[dict[str, object]]:
    """One row per benchmark and reference set: evaluated documents, and available, asked and kept references.

    None for numbers that do not exist: unpublished ones, and the counts of a run whose answers were all stored.
    """
    published = {
        (quantity, name): int(each.value)
        for each in experiment.paper
        for quantity, name in each.cell.items()
    }
    return [
        {
            "model": cell.results[0].model.name,
            "task": cell.coordinates["task"],
            "documents": scores_of(cell.results[0])[0].n,
            "published_documents": published.get(("documents", cell.coordinates["task"])),
            "reference": source["title"],
            "available": source["documents"],
            "test_documents": source["dropped"],
            "asked": source["asked"],
            "published_asked": published.get(("references", source["title"])),
            "kept": source.get("correct"),
            "data": ", ".join(source.get("data", [])),
        }
        for cell in cells
        if cell.results
        for source in ((cell.results[0].report.get("reference") or {}).get("set") or {}).get(
            "sources", []
        )
    ]
