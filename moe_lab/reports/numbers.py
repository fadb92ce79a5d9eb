"""The numbers of a results.json as rows: value, interval, comparison with the untouched model, marks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moe_lab.results.samples import reported
from moe_lab.results.store import version_marks

MARKS = {
    "PARTIAL": "PARTIAL: part of the documents (limit=, samples=); not the benchmark's number.",
    "untuned": "untuned: the method's values were given, not tuned on held-out data.",
    "other-versions": "other-versions: made with other versions of lm_eval, transformers or moe_lab.",
}
"""What has to be said wherever a number of such a run appears."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One task's headline metric in one run. Rates are fractions; None where a number does not exist."""

    model: str
    method: str
    task: str
    metric: str
    run_id: str
    n: int | None = None
    value: float | None = None
    interval: tuple[float, float] | None = None
    baseline: float | None = None
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    p_mcnemar: float | None = None
    marks: tuple[str, ...] = field(default=())


def rows_of(results: dict[str, Any], metric: str | None = None) -> list[Row]:
    """One row per group and task of a run: its headline metric, or `metric` (lm-eval's `metric,filter`)."""
    block = results["moe_lab"]
    wanted = metric or block["task"].get("metric")
    names = [*results.get("groups", {}), *block["task"]["tasks"]]
    return [_row(results, block, name, wanted) for name in names if name in results["results"]]


def marks_of(block: dict[str, Any]) -> tuple[str, ...]:
    """The keys of MARKS that hold for a run; `block` is the `moe_lab` part of its results.json."""
    names = {"partial": "PARTIAL", "untuned": "untuned"}
    marks = tuple(label for key, label in names.items() if block.get(key))
    return (*marks, "other-versions") if version_marks(block) else marks


def _row(results: dict[str, Any], block: dict[str, Any], task: str, wanted: str | None) -> Row:
    scores = results["results"][task]
    metric = headline(scores, wanted)
    paired = block.get("paired", {}).get(task, {}).get(metric, {})
    baseline = (block.get("baseline") or {}).get("results", {}).get(task, {})
    interval = block.get("intervals", {}).get(task, {}).get(metric)
    return Row(
        model=block["model"]["name"],
        method=block["method"]["name"],
        task=task,
        metric=metric,
        run_id=block["run_id"],
        n=_documents(results, block["samples"], task),
        value=_number(scores.get(metric)),
        interval=_pair(interval),
        baseline=_number(baseline.get(metric)),
        difference=_number(paired.get("difference")),
        difference_interval=_pair(paired.get("ci95")),
        p_mcnemar=_number(paired.get("p_mcnemar")),
        marks=marks_of(block),
    )


def headline(scores: dict[str, Any], wanted: str | None) -> str:
    """The headline metric, `metric,filter`: the task's own, else the first reported; a dash with predict_only."""
    known = reported(scores)
    if wanted in known:
        return str(wanted)
    return known[0] if known else "-"


def _documents(results: dict[str, Any], samples: dict[str, list[int]], name: str) -> int:
    """Documents of a task, or of all tasks of a group."""
    if name in samples:
        return len(samples[name])
    return sum(_documents(results, samples, child) for child in results["group_subtasks"][name])


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _pair(value: Any) -> tuple[float, float] | None:
    return (float(value[0]), float(value[1])) if value and None not in value else None
