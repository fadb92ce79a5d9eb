"""The files of a paper's table: their names, the CSV with numbers as they are stored, and the index of the folder."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from moe_lab.reports.csv_rows import csv_text, safe_cell, write_rows
from moe_lab.reports.papers.cells import (
    TableCell,
    averages,
    compared_names,
    corrected_scores,
    place_of,
    published_of,
)
from moe_lab.reports.papers.experiment import FIGURES, Experiment, Published
from moe_lab.results.atomic import write_file
from moe_lab.results.identity import RUNTIME
from moe_lab.results.score_table import Family, flat
from moe_lab.results.scores import Score
from moe_lab.results.stored_files import damaged, read_csv

# The files of an experiment's table: their names, which files stay, and the index

SAME_TABLE = RUNTIME - {"baseline", "metrics", "seeds", "tuning"} | {"data_dir"}
"""Keys that change neither the numbers nor the contents of a table. Results of local files and of the hub share one."""
SAME_NUMBERS = (
    "model.attn_implementation",
    "model.device_map",
    "model.experts_implementation",
    "model.tp_plan",
    "tuning.storage",
    "tuning.timeout",
)
LONGEST = 60
"""Most characters of the typed overrides in a file's name."""


def typed_settings(overrides: Sequence[str]) -> list[str]:
    """The typed overrides that change a table, sorted, each once."""
    return sorted({text for text in (each.lstrip("+") for each in overrides) if _changes(text)})


def _changes(override: str) -> bool:
    key = override.partition("=")[0].partition("@")[0]
    group = re.split(r"[./]", key, maxsplit=1)[0]
    return group not in SAME_TABLE | {"hydra"} and key not in SAME_NUMBERS


def file_stem(experiment: Experiment, scale: str) -> str:
    """The name of an experiment's files: `<folder>-<name>-<scale>`, then the typed overrides and a hash of them."""
    plain = f"{experiment.name.replace('/', '-')}-{scale}"
    if not experiment.typed:
        return plain
    pairs = (text.partition("=") for text in experiment.typed)
    typed = "-".join(f"{key}-{value.rpartition('/')[2]}" for key, _, value in pairs)
    digest = hashlib.sha256("\n".join(experiment.typed).encode()).hexdigest()[:8]
    return f"{plain}-{re.sub(r'[^A-Za-z0-9._]+', '-', typed)[:LONGEST].strip('-')}-{digest}"


def title(experiment: Experiment, scale: str) -> str:
    """The title of a table: the experiment's title, the scale, and the typed overrides."""
    return f"{experiment.title} ({', '.join([f'scale {scale}', *experiment.typed])})"


def typed_lines(experiment: Experiment) -> list[str]:
    """Markdown lines about the typed overrides; empty without any."""
    if not experiment.typed:
        return []
    typed = ", ".join(f"`{text}`" for text in experiment.typed)
    return [f"Typed with `experiment=`: {typed}.{merged_text(experiment)}", ""]


def merged_text(experiment: Experiment) -> str:
    """A sentence with the number of cells that became equal to others; empty if all differ."""
    if not experiment.merged:
        return ""
    equal = (
        "1 cell equal to another" if experiment.merged == 1 else f"{experiment.merged} cells equal to others"
    )
    return f" This makes {equal}; equal cells are shown once."


def measured_before(table: Path, unmeasured: Sequence[TableCell]) -> list[TableCell]:
    """The cells without results whose numbers are in the CSV `table`. Raises DamagedError."""
    if not table.is_file():
        return []
    try:
        rows = [row for row in read_csv(table) if row.get("value", "-")]
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(table, error) from error
    return [cell for cell in unmeasured if any(_stands_in(row, cell) for row in rows)]


def _stands_in(row: dict[str, str], cell: TableCell) -> bool:
    shared = row.keys() & cell.coordinates.keys()
    return bool(shared) and all(row[key] == safe_cell(cell.coordinates[key]) for key in shared)


def remove_figure(folder: Path, stem: str, kind: str) -> None:
    """Remove an earlier figure: its pictures and its CSV."""
    for suffix in (".png", ".svg", ".csv"):
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


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines]


def write_rows_table(
    folder: Path, stem: str, lines: Sequence[str], rows: Sequence[Mapping[str, object]]
) -> list[Path]:
    """Write Markdown lines as `<stem>.md` and rows as `<stem>.csv`; returns both paths."""
    markdown = write_file(folder / f"{stem}.md", "\n".join(lines) + "\n")
    return [markdown, write_rows(rows, folder / f"{stem}.csv")]


# The table of an experiment as CSV: one line per cell, numbers as they are stored
#
# - `value` is the mean over `seeds` runs, `std` their standard deviation.
# - `low` and `high` are the 95% interval over documents (for a training: over its held-out rows), `seed_low` and
#   `seed_high` the 95% interval over seeds. `difference_both_low` and `difference_both_high` are over seeds and
#   documents together, from five seeds on.
# - `p_holm` is corrected for the comparisons of the same `question`, whose number is `family`. The p before the
#   correction is `p_mcnemar`, `p_randomization` for scores that are not 0 or 1, or `p_seeds` for a mean over seeds.
# - `without_neighbour` is the number of questions of a C3PO run without a neighbour.
# - `run_id` lists the runs of all seeds. `study` is the folder of the study that tuned them.
#
# Averages come last. Comparisons with other runs than base (`compared` of results.json) have columns of their own.

COMPARED_COLUMNS = (
    "difference",
    "difference_low",
    "difference_high",
    "difference_seed_low",
    "difference_seed_high",
    "difference_both_low",
    "difference_both_high",
    "p_mcnemar",
    "p_randomization",
    "p_seeds",
    "p_average",
    "p_holm",
    "question",
    "family",
)
CSV_COLUMNS = (
    *("metric", "value", "stderr", "std", "low", "high", "seed_low", "seed_high", "n", "seeds"),
    *("without_neighbour", *COMPARED_COLUMNS, "marks"),
    *("published", "published_unit", "published_place", "published_mark", "run_id", "study", "problem"),
)


def cells_csv(experiment: Experiment, cells: Sequence[TableCell], family: Family) -> str:
    """One line per cell, then one per average; numbers as they are stored."""
    others = compared_names(cells)
    names = [f"{other}_{column}" for other in others for column in COMPARED_COLUMNS]
    shown, rows = [*cells, *averages(experiment, cells)], []
    corrected = corrected_scores(shown, family)
    for cell in shown:
        line = _csv_numbers(cell, corrected.get(place_of(cell)), published_of(experiment, cell))
        for other in others:
            if score := corrected.get(place_of(cell, other)):
                line |= {f"{other}_{column}": flat(score)[column] for column in COMPARED_COLUMNS}
        rows.append(line)
    return csv_text(rows, [*experiment.keys, *CSV_COLUMNS, *names])


def _csv_numbers(cell: TableCell, score: Score | None, published: Published | None) -> dict[str, object]:
    """The columns of a cell without its comparisons with other runs than the base model's."""
    study = " ".join(folder.name for folder in cell.studies) or None
    line: dict[str, object] = {**cell.coordinates, "run_id": cell.run_id, "study": study}
    line["problem"] = cell.problem
    if score is not None:
        without = cell.without_neighbour()
        line |= {name: value for name, value in flat(score).items() if name in CSV_COLUMNS}
        line["without_neighbour"] = without and without[0]
    if published is not None:
        parts = asdict(published) | {"published": published.value}
        line |= {name: parts[name.removeprefix("published_")] for name in CSV_COLUMNS if "published" in name}
    return line
