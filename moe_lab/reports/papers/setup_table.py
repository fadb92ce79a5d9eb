"""The papers' tables of settings beside this package's: Table 1 of RoE and of MoE-Bench. Nothing is run for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.papers.experiment import Experiment
from moe_lab.reports.papers.table_files import file_stem, write_rows_table

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
    """RoE's Table 1 and the presets; `rows` have category, model, quantity, value, published, place."""
    return write_rows_table(folder, file_stem(experiment, scale), _setup_lines(experiment, rows), rows)


def write_recipe(
    experiment: Experiment, rows: Sequence[dict[str, Any]], folder: Path, scale: str
) -> list[Path]:
    """MoE-Bench's Table 1 and the defaults of finetune-freeze; `rows` have setting, value, published, place."""
    lines = [f"# {experiment.title}", "", experiment.source, ""]
    lines += ["| setting | here | paper |", "|---|---:|---:|"]
    lines += [f"| `{row['setting']}` | {row['value']:g} | {row['published']:g} |" for row in rows]
    return write_rows_table(folder, file_stem(experiment, scale), lines, rows)


def _setup_lines(experiment: Experiment, rows: Sequence[dict[str, Any]]) -> list[str]:
    by_place = {(row["category"], row["model"], row["quantity"]): row for row in rows}
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
        texts = [_text(by_place.get((category, model, name))) for name in quantities]
        lines.append(f"| {category} | {model} | {' | '.join(texts)} |")
    return lines


def _text(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    own, published = (_shown(row["quantity"], row[key]) for key in ("value", "published"))
    return own if own == published else f"{own} (paper: {published})"


def _shown(quantity: str, value: float) -> str:
    if quantity in NAMES:
        return NAMES[quantity][int(value)]
    return f"{value:g}"
