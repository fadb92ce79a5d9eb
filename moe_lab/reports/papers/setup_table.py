"""Table 1 of the RoE paper beside the presets of this package. Nothing is run for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.csv_rows import write_rows
from moe_lab.reports.papers.spec import Experiment
from moe_lab.reports.papers.table_files import file_stem
from moe_lab.results.atomic import write_atomically

HEADINGS = {
    "n": "N (rows)",
    "max_temperature": "T (highest temperature)",
    "skip_layers": "L (layers skipped at each end)",
    "cache": "cache",
    "num_samples": "tuning documents",
    "n_trials": "trials",
    "metric": "tuned on",
}
NAMES = {"metric": ("accuracy", "perplexity"), "cache": ("clean", "standard")}
"""What 0 and 1 stand for."""


def write_setup(
    experiment: Experiment, rows: Sequence[dict[str, Any]], folder: Path, scale: str
) -> list[Path]:
    """Write `<name>-<scale>.md` and `.csv`; `rows` have category, model, quantity, value, published, place."""
    stem = file_stem(experiment, scale)
    folder.mkdir(parents=True, exist_ok=True)
    markdown = folder / f"{stem}.md"
    write_atomically(markdown, _markdown(experiment, rows))
    return [markdown, write_rows(rows, folder / f"{stem}.csv")]


def _markdown(experiment: Experiment, rows: Sequence[dict[str, Any]]) -> str:
    found = {(row["category"], row["model"], row["quantity"]): row for row in rows}
    places = list(dict.fromkeys((row["category"], row["model"]) for row in rows))
    quantities = [name for name in HEADINGS if any(row["quantity"] == name for row in rows)]
    lines = [
        f"# {experiment.title}",
        "",
        experiment.source,
        "",
        "What tuning uses where nothing else is given; where the paper has another number, it follows in brackets.",
        "",
        f"| category | model | {' | '.join(HEADINGS[name] for name in quantities)} |",
        "|" + " --- |" * (len(quantities) + 2),
    ]
    for category, model in places:
        texts = [_text(found.get((category, model, name))) for name in quantities]
        lines.append(f"| {category} | {model} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _text(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    own, published = (_shown(row["quantity"], row[key]) for key in ("value", "published"))
    return own if own == published else f"{own} (paper: {published})"


def _shown(quantity: str, value: float) -> str:
    if quantity in NAMES:
        return NAMES[quantity][int(value)]
    return f"{value:g}"
