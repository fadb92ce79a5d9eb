"""Tables that are logged to Weights & Biases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.reports.papers.metrics import model_folder
from moe_lab.results.model import RunResult
from moe_lab.results.samples import Sample, read_samples, reported
from moe_lab.results.scores import marks_of
from moe_lab.results.stored_files import read_lines, read_mapping

if TYPE_CHECKING:
    import pandas as pd

# The training of a run's model: its log.jsonl by step

STEP = "training/step"


def training_lines(result: RunResult) -> list[dict[str, object]]:
    """Keys `training/<name>` per line of the log; `training/<name>/layer_<i>` for a value by layer.

    Empty if the method trained no model, or if the model's folder is gone.
    """
    folder = model_folder(result)
    return [] if folder is None else [_flat(line) for line in read_lines(folder / "log.jsonl") or []]


def _flat(line: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in line.items():
        if isinstance(value, list):
            flat |= {f"training/{name}/layer_{layer}": number for layer, number in enumerate(value)}
        else:
            flat[f"training/{name}"] = value
    return flat


# Results and studies as plain keys and tables, for any logger


def scores(result: RunResult) -> dict[str, object]:
    """Every score as `<task>/<metric,filter>` with its standard error; the headline as `score`; the costs.

    The headline of a group is the group's own score. `difference` is the difference to the base model, if it was
    evaluated.
    """
    values: dict[str, object] = {}
    for task, task_scores in result["results"].items():
        errors = [key.replace(",", "_stderr,", 1) for key in reported(task_scores)]
        values |= {
            f"{task}/{key}": task_scores[key]
            for key in (*reported(task_scores), *errors)
            if _number(task_scores.get(key))
        }
    first = result.requested[0]
    task = first if len(result.requested) == 1 and result.scores(first) else result.tasks[0]
    if (metric := result.metric) is not None:
        headline = {
            "score": result.scores(task).get(metric),
            "difference": result.paired(task, metric).difference,
        }
        values |= {key: value for key, value in headline.items() if _number(value)}
    values |= {
        f"baseline/{task}/{key}": value
        for task in result.tasks
        for key, value in result.other_scores(task).items()
    }
    return values | {f"cost/{key}": value for key, value in result.cost.numbers.items() if _number(value)}


def marks(result: RunResult) -> list[str]:
    """The notes of a run: `partial`, `untuned`, `upper-bound` and so on."""
    return [mark.lower() for mark in marks_of(result)]


def samples(result: RunResult) -> dict[str, pd.DataFrame]:
    """lm-eval's log of samples as one table per task: `samples/<task>`. Raises DamagedError where a log is damaged."""
    import pandas as pd

    return {
        f"samples/{task}": pd.DataFrame(map(_row, lines), dtype=object)
        for task, lines in read_samples(result).items()
    }


def _row(sample: Sample) -> dict[str, Any]:
    return {
        "doc_id": sample.document,
        "filter": sample.filter,
        "prompt": sample.requests[0][0] if sample.requests else "",
        "target": sample.target,
        "response": _text(sample.responses),
        "filtered": _text(sample.filtered),
    } | {metric: _text(value) for metric, value in sample.values.items()}


def trial(number: int, value: float | None, temperatures: Sequence[float], state: str) -> dict[str, object]:
    """One trial: its number, value, state, and the temperature of every MoE layer."""
    scored = {} if value is None else {"value": value}
    return {"trial": number, "state": state, **scored, **by_layer(temperatures)}


def by_layer(temperatures: Sequence[float]) -> dict[str, float]:
    """The temperature of every MoE layer, by a key that sorts as the layers do."""
    width = len(str(max(len(temperatures) - 1, 0)))
    return {f"temperature/layer_{layer:0{width}d}": t for layer, t in enumerate(temperatures)}


def study(folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    """The content of study.json, and the scores, temperatures and settings of best.yaml."""
    content = read_mapping(folder / "study.json") or {}
    best = read_mapping(folder / "best.yaml") or {}
    names = ("score", "untuned_score", "trial", "trials", "temperature")
    settings = {f"best/{name}": value for name, value in (best.get("settings") or {}).items()}
    return content, {f"best/{name}": best[name] for name in names} | settings


def _text(value: Any) -> Any:
    """A value as a cell of a table: nested values as JSON."""
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
