"""`metrics=expert`, as it is shown: the expert metrics of MoE-Bench (section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from moe_lab.metrics.intervals import difference_of
from moe_lab.metrics.registry import Intervention, counted_metrics, intervention_metrics, interventions
from moe_lab.metrics.stored import stored_metrics
from moe_lab.reports.measures.view import Content, PageTable, Table, View
from moe_lab.reports.terminal.layout import (
    StackedTable,
    interval,
    names,
    number,
    numbers,
    print_stacked,
    stacked_table,
)
from moe_lab.reports.terminal.results import HOLM, INTERVAL, P, settings
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import Family
from moe_lab.results.scores import Comparison, headline
from moe_lab.results.significance import ALPHA

LAYER_COLUMNS = ["metric", "of", "layer", "value", "low", "high", "maximum"]


class ExpertView(View):
    """Entropies in bits, and the accuracy lost under changed routing (docs/expert_metrics.md)."""

    def stored(self, folder: Path, run_id: str, commit: str | None) -> Content | None:
        return stored_metrics(folder, run_id, commit)

    def comparisons(self, results: Sequence[RunResult]) -> dict[Comparison, float | None]:
        """McNemar's p of each accuracy lost in one evaluation; None for the mean of several."""
        stored = [(run.run_id, metrics) for run in results if (metrics := self.of(run)) is not None]
        return {key: p for run_id, metrics in stored for key, p in lost_p_values(metrics, run_id).items()}

    def print(self, results: Sequence[RunResult], family: Family) -> None:
        rows: list[tuple[str, ...]] = []
        labels = settings([run.overrides for run in results], [run.seed for run in results])
        for run, label in zip(results, labels, strict=True):
            if (metrics := self.of(run)) is not None:
                task = ",".join(run.requested)
                rows += [
                    (run.model, run.method, label, task, *line) for line in lines(metrics, run.run_id, family)
                ]
        if rows:
            print()
            print_stacked(expert_table(rows, family), explained(family))
            print(CORRECTED)

    def values(self, content: Content) -> dict[str, float]:
        """`expert/<metric>/<of>` in bits; of each task `expert/<which>/<task>/<metric,filter>`, the accuracy lost."""
        scores = {
            f"expert/{metric}/{of}": one["value"]
            for metric in counted_metrics()
            for of, one in content[metric].items()
            if one is not None
        }
        return scores | {
            f"expert/{each.logged_as}/{task}/{metric}": loss["difference"]
            for name, each in interventions()
            if content[name] is not None
            for task, losses in each.block(content[name])["tasks"].items()
            for metric, loss in losses.items()
        }

    def tables(self, content: Content) -> dict[str, Table]:
        """A row per metric, kind of tokens and MoE layer."""
        rows = []
        for metric in counted_metrics():
            for of, one in content[metric].items():
                for index, layer in enumerate(one["layers"] if one else []):
                    limits = layer["ci95"] or [None, None]
                    rows.append([metric, of, index, layer["value"], *limits, layer["maximum"]])
        return {"expert/layers": (LAYER_COLUMNS, rows)}

    def page_table(self, content: Content) -> PageTable:
        names = list(counted_metrics())
        by_metric = [(content[name]["all"] or {}).get("layers") or [] for name in names]
        return PageTable(
            title="Expert metrics by layer",
            caption="Entropies in bits with 95% intervals, over all tokens.",
            columns=["layer", *(metric.label for metric in counted_metrics().values())],
            rows=[[str(layer), *cells] for layer, cells in enumerate(zip(*by_metric, strict=True))],
        )


UNCHANGED = "unchanged routing"
"""What a lost accuracy is compared with."""
CORRECTED = "Both entropies are corrected by the jackknife: entropies of few tokens are too low."
PHASES = {"all": "all tokens", "prefill": "prompts", "decode": "answers"}
Line = tuple[str, str, str, str, str, str, str, str]
"""Metric, subject, value, interval, accuracies or the largest possible value, p, difference to base, interval."""


def explained(family: Family) -> dict[str, str]:
    """What a column shows (docs/expert_metrics.md)."""
    test = "McNemar's exact test of the lost accuracy"
    corrected = f"{test}, corrected for all comparisons of the command ({family.note})"
    return {
        "value": "bits of entropy; for Capacity and Specialization the accuracy lost.",
        "at most, or accuracy": "the largest entropy possible; accuracy before and after.",
        P: f"{test}. Significant below {ALPHA}.",
        HOLM: f"{corrected}. Significant below {ALPHA}.",
        "to base": "value minus that of base.",
    }


def expert_table(rows: Sequence[tuple[str, ...]], family: Family) -> StackedTable:
    """One row per run, metric and what it is of; each row has the run's model, method, settings, task, and a `Line`."""
    columns = [list(cells) for cells in zip(*rows, strict=True)]
    model, method, label, task, metric, subject, value, limits, bound, p, difference, its_limits = columns
    stacks = [
        names({"model": model, "method": method, "settings": label}),
        names({"task": task}),
        names({"metric": metric, "of": subject}),
        numbers({"value": value, INTERVAL: limits}),
        numbers({"at most, or accuracy": bound, HOLM if family.tests > 1 else P: p}),
        numbers({"to base": difference, INTERVAL: its_limits}),
    ]
    return stacked_table("Expert metrics", stacks)


def lines(metrics: dict[str, Any], run_id: str, family: Family) -> list[Line]:
    """The rows of one run's expert_metrics.json."""
    return [*_entropies(metrics), *_losses(metrics, run_id, family)]


def lost_p_values(metrics: dict[str, Any], run_id: str) -> dict[Comparison, float | None]:
    """The p of each shown loss before the correction; None for a mean over random routings."""
    return {
        _comparison(run_id, each, task, metric): runs[0]["p_mcnemar"] if len(runs) == 1 else None
        for name, each in interventions()
        if metrics[name] is not None
        for task, metric, loss in _of_tasks(each.block(metrics[name])["tasks"], metrics["metric"])
        for runs in [loss["runs"]]
    }


def _comparison(run_id: str, each: Intervention, task: str, metric: str) -> Comparison:
    return run_id, task, f"expert.{each.name} {metric}", UNCHANGED


def _entropies(metrics: dict[str, Any]) -> Iterator[Line]:
    for name, metric in counted_metrics().items():
        for phase, of in PHASES.items():
            if (one := metrics[name][phase]) is not None:
                limits = interval(one["ci95"])
                shown = number(one["value"]), limits, number(one["maximum"]), ""
                yield f"{metric.label}, bits", of, *shown, *_difference(metrics, name, phase)


def _losses(metrics: dict[str, Any], run_id: str, family: Family) -> Iterator[Line]:
    for name, each in interventions():
        if metrics[name] is not None:  # else the method lets no expert be masked or drawn at random
            tasks = each.block(metrics[name])["tasks"]
            found = _of_tasks(tasks, metrics["metric"])
            for task, metric, loss in found:
                p = family.corrected.get(_comparison(run_id, each, task, metric))
                shown = (
                    number(loss["difference"], sign=True),
                    interval(loss["ci95"], sign=True),
                    f"{number(loss['base'])} to {number(loss['changed'])}",
                    "" if p is None else number(p),
                )
                where = each.label if len(found) == 1 else f"{each.label}, {task}"
                difference = _difference(metrics, *each.path(name), "tasks", task, metric)
                yield f"{intervention_metrics()[name].label}, {metric}", where, *shown, *difference


def _of_tasks(tasks: dict[str, Any], metric_name: str | None) -> list[tuple[str, str, dict[str, Any]]]:
    """Each task with its metric and loss; of many tasks (a group) their documents together."""
    shown = {"all": tasks["all"]} if len(tasks) > 4 and tasks.get("all") else tasks
    metrics = {task: headline(losses, metric_name) for task, losses in shown.items() if losses}
    return [(task, metric, shown[task][metric]) for task, metric in metrics.items()]


def _difference(metrics: dict[str, Any], *path: str) -> tuple[str, str]:
    """The difference to the base model, and its interval; empty without one."""
    found = difference_of(metrics, "baseline", *path)
    if not found:
        return "", ""
    return number(found["difference"], sign=True), interval(found["ci95"], sign=True)


VIEW = ExpertView()
