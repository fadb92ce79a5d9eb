"""MoE-Bench's Table 1 beside the defaults of `method=finetune-freeze`. Nothing is run for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.csv_rows import write_rows
from moe_lab.reports.papers.spec import Experiment
from moe_lab.reports.papers.table_files import file_stem
from moe_lab.results.atomic import write_atomically


def write_recipe(
    experiment: Experiment, rows: Sequence[dict[str, Any]], folder: Path, scale: str
) -> list[Path]:
    """Write `<name>-<scale>.md` and `.csv`; `rows` have setting, value, published, place."""
    stem = file_stem(experiment, scale)
    folder.mkdir(parents=True, exist_ok=True)
    markdown = folder / f"{stem}.md"
    lines = [
        f"# {experiment.title}",
        "",
        experiment.source,
        "",
        "| setting | here | paper |",
        "|---|---:|---:|",
    ]
    lines += [f"| `{row['setting']}` | {row['value']:g} | {row['published']:g} |" for row in rows]
    write_atomically(markdown, "\n".join(lines) + "\n")
    return [markdown, write_rows(rows, folder / f"{stem}.csv")]
