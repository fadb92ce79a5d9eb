"""Results and studies as plain keys and tables, for any logger."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.results.samples import read_samples, reported
from moe_lab.results.stored_files import read_bytes, read_mapping

Table = tuple[list[str], list[list[Any]]]
"""Columns, and rows."""

SAMPLE_COLUMNS = ["doc_id", "filter", "prompt", "target", "response", "filtered"]


def scores(results: dict[str, Any]) -> dict[str, Any]:
    """Every score as `<task>/<metric,filter>`, with its standard error; the headline as `score`; cost.

    The headline of a group is the group's own score. `difference` is the gain over the untouched model, where that was
    evaluated.
    """
    block = results["moe_lab"]
    values: dict[str, Any] = {}
    for task, task_scores in results["results"].items():
        errors = [key.replace(",", "_stderr,", 1) for key in reported(task_scores)]
        values |= {
            f"{task}/{key}": task_scores[key]
            for key in (*reported(task_scores), *errors)
            if _number(task_scores.get(key))
        }
    requested, metric = block["task"]["name"], block["task"]["metric"]
    of_group = isinstance(requested, str) and requested in results["results"]
    task = requested if of_group else block["task"]["tasks"][0]
    if metric is not None:
        headline = {
            "score": results["results"].get(task, {}).get(metric),
            "difference": block.get("paired", {}).get(task, {}).get(metric, {}).get("difference"),
        }
        values |= {key: value for key, value in headline.items() if _number(value)}
    before = block.get("baseline", {}).get("results", {})
    values |= {
        f"baseline/{task}/{key}": value
        for task, task_scores in before.items()
        for key, value in task_scores.items()
    }
    return values | {f"cost/{key}": value for key, value in block["cost"].items() if _number(value)}


def marks(results: dict[str, Any]) -> list[str]:
    """The marks of a run: "partial" documents, "untuned" values."""
    return [mark for mark in ("partial", "untuned") if results["moe_lab"].get(mark)]


def samples(results: dict[str, Any], folder: Path) -> dict[str, Table]:
    """lm-eval's log of samples as one table per task: `samples/<task>`. Raises DamagedError where a log is damaged."""
    logs = read_samples(folder, results)
    return {f"samples/{task}": _samples_table(lines) for task, lines in logs.items()}


def _samples_table(lines: list[dict[str, Any]]) -> Table:
    metrics = list(dict.fromkeys(metric for line in lines for metric in line["metrics"]))
    rows = [
        [
            line["doc_id"],
            line["filter"],
            next(iter(next(iter(line["arguments"].values()), {"": ""}).values())),
            line["target"],
            _text(line["resps"]),
            _text(line["filtered_resps"]),
            *(_text(line.get(metric)) for metric in metrics),
        ]
        for line in lines
    ]
    return SAMPLE_COLUMNS + metrics, rows


def trial(number: int, value: float | None, temperatures: Sequence[float], state: str) -> dict[str, Any]:
    """One trial: its number, value, state, and the temperature of every MoE layer."""
    width = len(str(max(len(temperatures) - 1, 0)))
    layers = {f"temperature/layer_{layer:0{width}d}": t for layer, t in enumerate(temperatures)}
    return {"trial": number, "state": state, **({} if value is None else {"value": value}), **layers}


def study(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of study.json, and the scores and temperatures of best.yaml."""
    content = read_mapping(folder / "study.json") or {}
    best = read_mapping(folder / "best.yaml") or {}
    names = ("score", "untuned_score", "trial", "trials", "temperature")
    return content, {f"best/{name}": best[name] for name in names}


def csv_table(path: Path) -> Table:
    """The columns and rows of a CSV file, numbers as numbers."""
    columns, *rows = csv.reader(io.StringIO(read_bytes(path).decode("utf-8"), newline=""))
    return columns, [[_cell(text) for text in row] for row in rows]


def _cell(text: str) -> Any:
    if text == "":
        return None
    try:
        return float(text) if not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        return text


def _text(value: Any) -> Any:
    """A value as a cell of a table: nested values as JSON."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
