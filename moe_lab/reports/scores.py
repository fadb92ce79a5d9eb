"""The numbers of a results.json as rows: value, interval, comparison with the untouched model, marks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from moe_lab.results.folder import older_intervals, version_marks
from moe_lab.results.samples import reported
from moe_lab.results.statistics import mcnemar, tango, wilson
from moe_lab.results.verdicts import all_judged, judged_documents, judges_in

MARKS = {
    "PARTIAL": "PARTIAL: part of the documents (limit=, samples=); not the benchmark's number.",
    "untuned": "untuned: the method's values were given, not tuned on held-out data.",
    "upper-bound": "upper-bound: uses the test's right answers; what could be had, not a result.",
    "other-profile": "other-profile: the temperatures were tuned for another model or another n.",
    "test-profile": "test-profile: routed by which experts a run took together on its test documents (no labels).",
    "toy-judge": "toy-judge: scored by the toy world's classifier, which knows nothing of harm in the real world.",
    "unjudged": "unjudged: some answers have no verdict; n, value and interval are of the others.",
    "other-versions": "other-versions: made with other versions of lm_eval, transformers or moe_lab.",
    "older-intervals": "older-intervals: intervals are of earlier methods; the run's own command makes them anew.",
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
    seeds: int = 1
    value: float | None = None
    stderr: float | None = None
    """lm-eval's standard error, over documents."""
    std: float | None = None
    """Over seeds; the interval is over documents."""
    interval: tuple[float, float] | None = None
    baseline: float | None = None
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    p_mcnemar: float | None = None
    flips: tuple[int, int] | None = None
    """Documents that base got wrong and this right, and the other way round."""
    marks: tuple[str, ...] = field(default=())


def rows_of(results: dict[str, Any], metric: str | None = None) -> list[Row]:
    """One row per group and task of a run: its headline metric, or `metric` (lm-eval's `metric,filter`).

    What was asked for comes first: the group of that name, then those within it.
    """
    block = results["moe_lab"]
    wanted, asked = metric or block["task"].get("metric"), block["task"]["name"]
    names = [
        *([asked] if isinstance(asked, str) else asked),
        *results.get("groups", {}),
        *block["task"]["tasks"],
    ]
    return [
        _named_row(results, block, name, wanted)
        for name in dict.fromkeys(names)
        if name in results["results"]
    ]


def against(results: dict[str, Any], other: str) -> dict[str, Any]:
    """The same results, compared with another run (`compared` of the block) in the place of the untouched model."""
    block = results["moe_lab"]
    compared = block.get("compared", {}).get(other, {})
    swapped = {"baseline": compared, "paired": compared.get("paired", {})}
    return results | {"moe_lab": block | swapped}


def shown_rows(results: dict[str, Any]) -> list[Row]:
    """The rows of the headline metric, and of every judge's first one."""
    block = results["moe_lab"]
    metrics = [block["task"].get("metric"), *(judge["metrics"][0] for judge in judges_in(block))]
    found = [row for metric in dict.fromkeys(metrics) for row in rows_of(results, metric)]
    return list({(row.task, row.metric): row for row in found}.values())


def without_neighbour(block: dict[str, Any]) -> tuple[int, int] | None:
    """(questions of a C3PO run that had no neighbour and kept their pathway, all its questions); None for runs in which
    every question has the k nearest, and for the oracle, which asks for none.

    Args:
        block: `moe_lab` of a results.json.
    """
    c3po = block.get("c3po", {})
    without = c3po.get("reference", {}).get("questions_without", 0)
    if c3po.get("upper_bound") or (c3po.get("epsilon") is None and not without):
        return None
    return without, sum(len(documents) for documents in block["samples"].values())


def marks_of(block: dict[str, Any], task: str | None = None, metric: str | None = None) -> tuple[str, ...]:
    """The keys of MARKS that hold for a run, or for one of its scores; `block` is `moe_lab` of its results.json."""
    judges = [judge for judge in judges_in(block) if metric in (None, *judge["metrics"])]
    holds = {
        "PARTIAL": block.get("partial"),
        "untuned": block.get("untuned"),
        "upper-bound": block.get("c3po", {}).get("upper_bound"),
        "other-profile": _tuned_elsewhere(block),
        "test-profile": block.get("c2r", {}).get("test_profile"),
        "toy-judge": any(judge["toy"] for judge in judges),
        "unjudged": any(not all_judged(judge, task) for judge in judges),
        "other-versions": version_marks(block),
        "older-intervals": older_intervals(block),
    }
    return tuple(mark for mark, held in holds.items() if held)


def _tuned_elsewhere(block: dict[str, Any]) -> bool:
    if "tuning" not in block:
        return False
    tuned = block["tuning"]
    return (tuned["model"], tuned["n"]) != (block["model"]["name"], block["method"]["config"]["n"])


def _named_row(results: dict[str, Any], block: dict[str, Any], name: str, wanted: str | None) -> Row:
    """The row of a task, or of a group: where that is the mean over its documents, they are one sample."""
    row = _row(results, block, name, wanted)
    if name in block["samples"]:
        return row
    tasks = [_row(results, block, task, wanted) for task in _tasks_of(results, block["samples"], name)]
    counts = [round((task.value or 0.0) * (task.n or 0)) for task in tasks]
    shares = [count / (task.n or 1) for count, task in zip(counts, tasks, strict=True)]
    right, total = sum(counts), row.n or 0
    told = [*zip(shares, (task.value for task in tasks), strict=True), (right / max(total, 1), row.value)]
    if any(value is None or abs(share - value) > 1e-9 for share, value in told):
        return row  # scores that are no shares of documents, or a group that counts its tasks alike
    pooled = replace(row, interval=wilson(right, total) if total > 1 else None)
    if any(task.flips is None for task in tasks):
        return pooled
    won, lost = (sum(task.flips[side] for task in tasks if task.flips) for side in (0, 1))
    return replace(
        pooled,
        baseline=(right - won + lost) / total,
        difference=(won - lost) / total,
        difference_interval=tango(won, lost, total) if total > 1 else None,
        p_mcnemar=mcnemar(won, lost),
        flips=(won, lost),
    )


def _row(results: dict[str, Any], block: dict[str, Any], task: str, wanted: str | None) -> Row:
    scores = results["results"][task]
    metric = headline(scores, wanted)
    paired = block.get("paired", {}).get(task, {}).get(metric, {})
    baseline = (block.get("baseline") or {}).get("results", {}).get(task, {})
    interval = block.get("intervals", {}).get(task, {}).get(metric)
    judged = judged_documents(block, task, metric)
    return Row(
        model=block["model"]["name"],
        method=block["method"]["name"],
        task=task,
        metric=metric,
        run_id=block["run_id"],
        n=judged if judged is not None else _documents(results, block["samples"], task),
        value=_number(scores.get(metric)),
        stderr=_number(scores.get(metric.replace(",", "_stderr,", 1))),
        interval=pair(interval),
        baseline=_number(baseline.get(metric)),
        difference=_number(paired.get("difference")),
        difference_interval=pair(paired.get("ci95")),
        p_mcnemar=_number(paired.get("p_mcnemar")),
        flips=None if paired.get("to_right") is None else (paired["to_right"], paired["to_wrong"]),
        marks=marks_of(block, task, metric),
    )


def headline(scores: dict[str, Any], wanted: str | None) -> str:
    """The headline metric, `metric,filter`: the task's own, else the first reported; a dash with predict_only."""
    known = reported(scores)
    if wanted in known:
        return str(wanted)
    return known[0] if known else "-"


def _documents(results: dict[str, Any], samples: dict[str, list[int]], name: str) -> int:
    """Documents of a task, or of all tasks of a group."""
    return sum(len(samples[task]) for task in _tasks_of(results, samples, name))


def _tasks_of(results: dict[str, Any], samples: dict[str, list[int]], name: str) -> list[str]:
    """A task itself; the tasks of a group, and of the groups in it."""
    if name in samples:
        return [name]
    return [task for child in results["group_subtasks"][name] for task in _tasks_of(results, samples, child)]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def pair(value: Any) -> tuple[float, float] | None:
    """Two limits as JSON has them; None where one is missing."""
    return (float(value[0]), float(value[1])) if value and None not in value else None
