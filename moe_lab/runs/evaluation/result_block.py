"""The `moe_lab` block of results.json (schema version 1). A block that does not apply is absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moe_lab.results.paired import paired
from moe_lab.results.samples import Values, aggregation, metric_values, reported
from moe_lab.results.statistics import VERSION, interval
from moe_lab.results.versions import SCHEMA_VERSION, versions

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.runs.run import Run


def moe_lab_block(
    run: Run,
    evaluated: dict[str, Any],
    cost: dict[str, Any],
    report: dict[str, Any],
    before: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """What this package adds to lm-eval's result dictionary.

    `evaluated` is what `lm_eval.evaluate` returned, samples included; `report` is the method's own blocks; `before` has
    {"run_id", "results", "samples"} of the untouched model as "baseline", and of what else the run is compared with.
    """
    facts, config, tasks = run.facts, run.config, run.tasks["tasks"]
    values = {name: metric_values(evaluated["samples"][name]) for name in tasks}
    block: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "status": "success",
        "partial": run.partial,
        "model": {
            "name": facts.name,
            "path": facts.path,
            "revision": facts.revision,
            "commit": facts.commit,
            "identified_by": "content" if facts.commit is None else "commit",
            "family": facts.family,
            "dtype": facts.dtype,
            "moe_layers": facts.moe_layers,
            "experts": facts.experts,
            "top_k": facts.top_k,
        },
        "method": {"name": config.method.name, "config": asdict(config.method)},
        "task": {
            "name": config.task.name,
            "tasks": list(tasks),
            "metric": _headline(config, evaluated, list(tasks)),
        },
        "seed": config.seed if run.method.random else None,
        "overrides": list(config.overrides),
        "versions": versions(),
        "statistics": VERSION,
        "samples": run.samples,
        "cost": cost,
        "intervals": {name: _intervals(task, values[name]) for name, task in tasks.items()},
    }
    compared = {name: _compared(tasks, values, other) for name, other in before.items()}
    if "baseline" in compared:
        block["paired"] = compared["baseline"].pop("paired")
        block["baseline"] = compared.pop("baseline")
        if run.method.reports_flips:
            report[config.method.name] |= _flips(block["paired"], block["task"]["metric"])
    if compared:
        block["compared"] = compared
    return block | report


def _compared(tasks: dict[str, Any], values: dict[str, Values], other: dict[str, Any]) -> dict[str, Any]:
    """{"run_id", "results", "paired"}: another run's scores, and the difference to them, document by document."""
    before = {name: metric_values(other["samples"][name]) for name in tasks}
    return {
        "run_id": other["run_id"],
        "results": _scores(other["results"], list(tasks)),
        "paired": {name: _paired(task, values[name], before[name]) for name, task in tasks.items()},
    }


def _flips(compared: dict[str, dict[str, Any]], metric: str | None) -> dict[str, int | None]:
    """Documents that became right and wrong, of all tasks, by the headline metric."""
    found = [of_task[metric] for of_task in compared.values() if metric in of_task]
    flips = {
        key: [each.get(key) for each in found if each.get(key) is not None]
        for key in ("to_right", "to_wrong")
    }
    return {f"flipped_{key}": sum(counts) if counts else None for key, counts in flips.items()}


def _intervals(task: Any, values: Values) -> dict[str, list[float] | None]:
    found = {}
    for metric, by_document in values.items():
        limits = interval(list(by_document.values()), aggregation(task, metric))
        found[metric] = list(limits) if limits else None
    return found


def _paired(task: Any, values: Values, before: Values) -> dict[str, Any]:
    compared = {}
    for metric, by_document in values.items():
        documents = [document for document in by_document if document in before.get(metric, {})]
        if documents:
            mine, theirs = (
                [run[document] for document in documents] for run in (by_document, before[metric])
            )
            lower_is_better = task.higher_is_better().get(metric.partition(",")[0]) is False
            compared[metric] = paired(
                mine, theirs, aggregation(task, metric), lower_is_better=lower_is_better
            )
    return compared


def _headline(config: Config, evaluated: dict[str, Any], tasks: list[str]) -> str | None:
    if config.predict_only:
        return None
    return config.task.metric or next(iter(_scores(evaluated["results"], tasks).get(tasks[0], {})), None)


def _scores(results: dict[str, Any], tasks: list[str]) -> dict[str, dict[str, Any]]:
    """lm-eval's scores per task by `metric,filter`, without standard errors and counts."""
    return {
        name: {key: results[name][key] for key in reported(results[name])}
        for name in tasks
        if name in results
    }
