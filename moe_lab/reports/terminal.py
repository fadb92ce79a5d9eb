"""The table on the terminal that a run, a grid or a report ends with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from moe_lab.reports.numbers import Row, marks_of, rows_of
from moe_lab.results.store import version_marks

WIDTH_WITHOUT_TERMINAL = 160
MARKS = {
    "PARTIAL": "PARTIAL: part of the documents (limit=, samples=); not the benchmark's number.",
    "untuned": "untuned: the method's values were given, not tuned on held-out data.",
}


def print_outcomes(results: Sequence[dict[str, Any]]) -> None:
    """Print scores against the untouched model and what they cost, for one run or a whole grid."""
    print_table(score_table([row for result in results for row in rows_of(result)]))
    print_table(cost_table(results))
    for line in notes(results):
        print(line)


def score_table(rows: Sequence[Row]) -> Table:
    """One row per task and run: value, 95% interval, n, paired difference to base with interval and p."""
    table = Table("model", "method", "task", "metric", title="Results")
    for heading in ("n", "value", "95% interval", "base", "difference", "95% interval", "p (McNemar)"):
        table.add_column(heading, justify="right")
    table.add_column("marks")
    for row in rows:
        table.add_row(
            row.model,
            row.method,
            row.task,
            row.metric,
            "-" if row.n is None else f"{row.n:,}",
            number(row.value),
            interval(row.interval),
            number(row.baseline),
            number(row.difference, sign=True),
            interval(row.difference_interval, sign=True),
            number(row.p_mcnemar),
            " ".join(row.marks),
        )
    return table


def cost_table(results: Sequence[dict[str, Any]]) -> Table:
    """One row per run: time without loading, tokens per second, peak memory."""
    table = Table("model", "method", "task", title="Cost (time without loading the model)")
    for heading in (
        "time",
        "load",
        "tokens in",
        "tokens out",
        "tokens/s",
        "peak memory",
        "device",
        "routing changed",
    ):
        table.add_column(heading, justify="right")
    for result in results:
        block = result["moe_lab"]
        cost = block["cost"]
        table.add_row(
            block["model"]["name"],
            block["method"]["name"],
            block["task"]["name"]
            if isinstance(block["task"]["name"], str)
            else ",".join(block["task"]["name"]),
            seconds(cost.get("wall_seconds")),
            seconds(cost.get("load_seconds")),
            count(cost.get("tokens_in")),
            count(cost.get("tokens_out")),
            count(cost.get("tokens_per_second")),
            mebibytes(cost.get("peak_memory_bytes")),
            str(cost.get("device", "-")),
            percent((block.get("roe") or {}).get("changed_fraction")),
        )
    return table


def notes(results: Sequence[dict[str, Any]]) -> list[str]:
    """What the marks mean, for those that appear."""
    blocks = [result["moe_lab"] for result in results]
    seen = {mark for block in blocks for mark in marks_of(block)}
    made = {line for block in blocks for line in version_marks(block)}
    lines = [text for mark, text in MARKS.items() if mark in seen]
    return [*lines, *(f"other-versions: {line}" for line in sorted(made))]


def print_table(table: Table) -> None:
    """Print a table on stdout: as wide as the terminal, or wide enough where there is none."""
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    Console(file=sys.stdout, width=width).print(table)


def number(value: float | None, sign: bool = False) -> str:
    """Four decimals, or a dash for a number that does not exist."""
    return "-" if value is None else f"{value:{'+' if sign else ''}.4f}"


def interval(bounds: tuple[float, float] | None, sign: bool = False) -> str:
    """`[low, high]`, or a dash."""
    return "-" if bounds is None else f"\\[{number(bounds[0], sign)}, {number(bounds[1], sign)}]"


def seconds(value: float | None) -> str:
    """Seconds with one decimal."""
    return "-" if value is None else f"{value:,.1f} s"


def count(value: float | None) -> str:
    """A whole number with separators."""
    return "-" if value is None else f"{value:,.0f}"


def mebibytes(value: float | None) -> str:
    """Bytes as MiB."""
    return "-" if value is None else f"{value / 2**20:,.0f} MiB"


def percent(value: float | None) -> str:
    """A fraction as per cent with one decimal."""
    return "-" if value is None else f"{100 * value:.1f}%"
