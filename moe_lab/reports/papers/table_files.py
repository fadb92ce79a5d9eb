"""The files of an experiment's table: how they are called, which of them stay, and the index of all."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.csv_rows import write_rows
from moe_lab.reports.figure_kinds import FIGURES
from moe_lab.reports.papers.cell import TableCell
from moe_lab.reports.papers.spec import Experiment
from moe_lab.results.atomic import write_atomically, writing
from moe_lab.results.identity import RUNTIME
from moe_lab.results.stored import damaged

SAME_TABLE = RUNTIME - {"baseline", "metrics", "seeds", "tuning"}
"""Keys that change neither the numbers of a table nor what it shows."""
SAME_NUMBERS = ("model.device_map", "model.experts_implementation", "model.tp_plan")
LONGEST = 60
"""Characters of what was typed in a file's name."""


def typed_settings(overrides: Sequence[str]) -> list[str]:
    """Those of the typed overrides that change what a table shows, sorted, none twice."""
    return sorted({text for text in (each.lstrip("+") for each in overrides) if _changes(text)})


def _changes(override: str) -> bool:
    key = override.partition("=")[0].partition("@")[0]
    group = re.split(r"[./]", key, maxsplit=1)[0]
    return group not in SAME_TABLE | {"hydra"} and key not in SAME_NUMBERS


def file_stem(experiment: Experiment, scale: str) -> str:
    """What the files of an experiment are called: `<folder>-<name>-<scale>`, then what was typed beside it and a hash
    of that."""
    plain = f"{experiment.name.replace('/', '-')}-{scale}"
    if not experiment.typed:
        return plain
    pairs = (text.partition("=") for text in experiment.typed)
    typed = "-".join(f"{key}-{value.rpartition('/')[2]}" for key, _, value in pairs)
    digest = hashlib.sha256("\n".join(experiment.typed).encode()).hexdigest()[:8]
    return f"{plain}-{re.sub(r'[^A-Za-z0-9._]+', '-', typed)[:LONGEST].strip('-')}-{digest}"


def title(experiment: Experiment, scale: str) -> str:
    """The title of a table: the experiment's, its scale, and what was typed beside it."""
    return f"{experiment.title} ({', '.join([f'scale {scale}', *experiment.typed])})"


def typed_lines(experiment: Experiment) -> list[str]:
    """What a table says of the settings that were typed, as Markdown lines; nothing without one."""
    if not experiment.typed:
        return []
    typed = ", ".join(f"`{text}`" for text in experiment.typed)
    return [f"Typed beside `experiment=`: {typed}.{merged_text(experiment)}", ""]


def merged_text(experiment: Experiment) -> str:
    """How many cells became equal to others; nothing where all differ."""
    if not experiment.merged:
        return ""
    equal = (
        "1 cell equal to another" if experiment.merged == 1 else f"{experiment.merged} cells equal to others"
    )
    return f" This makes {equal}; equal cells stand here once."


def measured_before(table: Path, unmeasured: Sequence[TableCell]) -> list[TableCell]:
    """Those of some cells without results of which the CSV `table` has numbers. Raises DamagedError."""
    if not table.is_file():
        return []
    try:
        with table.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("value", "-")]
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(table, error) from error
    return [cell for cell in unmeasured if any(_stands_in(row, cell) for row in rows)]


def _stands_in(row: dict[str, str], cell: TableCell) -> bool:
    shared = row.keys() & cell.coordinates.keys()
    return bool(shared) and all(row[key] == cell.coordinates[key] for key in shared)


def remove_figure(folder: Path, stem: str, kind: str) -> None:
    """Remove the picture of an earlier table, and the numbers behind it, where there is one."""
    for suffix in (".png", ".csv"):
        (folder / f"{stem}-{kind}{suffix}").unlink(missing_ok=True)


def write_index(folder: Path) -> Path:
    """Write `index.md`: every table in the folder with its title, and its figures."""
    lines = ["# Tables", ""]
    for file in sorted(folder.glob("*.md")):
        if file.name != "index.md":
            heading = (
                file.read_text(encoding="utf-8", errors="replace").partition("\n")[0].lstrip("# ")
                or file.stem
            )
            drawn = [folder / f"{file.stem}-{kind}.png" for kind in FIGURES]
            figures = "".join(
                f", [figure]({figure.name}) ([csv]({figure.with_suffix('.csv').name}))"
                for figure in drawn
                if figure.exists()
            )
            lines.append(f"- [{heading}]({file.name}) ([csv]({file.with_suffix('.csv').name})){figures}")
    return write_file(folder / "index.md", "\n".join(lines) + "\n")


def write_rows_table(
    folder: Path, stem: str, lines: Sequence[str], rows: Sequence[dict[str, Any]]
) -> list[Path]:
    """Write Markdown lines as `<stem>.md` and rows as `<stem>.csv`; returns both paths."""
    markdown = write_file(folder / f"{stem}.md", "\n".join(lines) + "\n")
    return [markdown, write_rows(rows, folder / f"{stem}.csv")]


def write_file(path: Path, text: str) -> Path:
    """Write a table's file atomically, its folder made where needed. Raises ResultsError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return path
