"""The page of a grid, in `outputs/pages/`: verdict, scores, the answers that changed, routing, cost, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moe_lab.reports.pages.changed_answers import KINDS, changed_answers
from moe_lab.reports.pages.confidence import by_confidence
from moe_lab.reports.pages.downloads import csv_of_rows, latex_of_rows
from moe_lab.reports.pages.origins import origins_of
from moe_lab.reports.pages.page import number, rendered, text_uri, write_text
from moe_lab.reports.pages.record import lower_is_better, run_record
from moe_lab.reports.pages.routing import routing_of
from moe_lab.reports.pages.scatter import Plot, Point, plot
from moe_lab.reports.pages.stored_run import StoredRun
from moe_lab.reports.pages.verdict import BETTER, NOT_TOLD, WORSE, Compared, verdicts
from moe_lab.reports.scores import MARKS, Score, against, corrected, marks_of, scores_of, shown_scores
from moe_lab.reports.terminal.results import settings
from moe_lab.reports.terminal.seeds import count_seeds, summary_lines

COSTS = {
    "wall_seconds": ("seconds without loading", 1.0),
    "peak_memory_bytes": ("peak memory, GiB", 2.0**30),
}
"""What scores are drawn against: the key in `cost`, what the axis says, and the divisor."""
Line = tuple[StoredRun, str, Score]
"""A run, its settings, and one of its scores."""


def write_runs_page(runs: Sequence[StoredRun], path: Path, summaries: Sequence[dict[str, Any]] = ()) -> Path:
    """Write the page of some runs and return its path. Raises ResultsError.

    Each run that is compared with a baseline has its answers beside the baseline's, if both sample logs are stored.

    Args:
        summaries: files of `outputs/summaries`, of those of the runs that differ in the seed alone.
    """
    return write_text(path, runs_text(runs, summaries))


def runs_text(runs: Sequence[StoredRun], summaries: Sequence[dict[str, Any]] = ()) -> str:
    """The page of `write_runs_page`."""
    blocks = [run.block for run in runs]
    labels = settings(
        [block.get("overrides", []) for block in blocks], [block.get("seed") for block in blocks]
    )
    names = [_run_name(block, label) for block, label in zip(blocks, labels, strict=True)]
    lines = _lines(runs, labels)
    found = verdicts([_named(*line) for line in lines])
    table = [_row(score, label) for _, label, score in lines]
    changed = changed_answers(runs, names)
    seen = {mark for _, _, score in lines for mark in score.marks}
    return rendered(
        "runs.html.j2",
        title=_title(blocks),
        models=list(dict.fromkeys(f"{block['model']['name']}" for block in blocks)),
        verdicts={kind: [one for one in found if one.outcome == kind] for kind in (BETTER, WORSE, NOT_TOLD)},
        only=found[0] if len(found) == 1 else None,
        count=len(found),
        lines=[
            {"label": label, "score": score, "compared": _compared(run, score)} for run, label, score in lines
        ],
        compared=list(dict.fromkeys(name for block in blocks for name in block.get("compared", {}))),
        seeds=[
            {"names": names, "score": score, "seeds": count_seeds(one), "marks": marks_of(one)}
            for names, score, one in summary_lines(summaries)
        ],
        csv=text_uri(csv_of_rows(table), "csv"),
        latex=text_uri(latex_of_rows(table, _title(blocks)), "x-tex"),
        changed=changed,
        kinds=KINDS,
        gains={name: groups for name, pairs in changed.pairs.items() if (groups := by_confidence(pairs))},
        tasks=list(dict.fromkeys(each["task"] for each in changed.answers)),
        names=list(dict.fromkeys(each["run"] for each in changed.answers)),
        routing=[each for run, name in zip(runs, names, strict=True) if (each := routing_of(run, name))],
        origins=origins_of(runs),
        costs=list(zip(runs, names, strict=True)),
        plots=_plots(lines, {run.run_id: str(place) for place, run in enumerate(runs, start=1)}),
        runs=[
            run_record(block) | {"folder": run.folder.name} for run, block in zip(runs, blocks, strict=True)
        ],
        marks=[text for mark, text in MARKS.items() if mark in seen],
    )


def _lines(runs: Sequence[StoredRun], labels: Sequence[str]) -> list[Line]:
    """The scores of all runs, their p corrected together."""
    shown = [
        (run, label, score)
        for run, label in zip(runs, labels, strict=True)
        for score in shown_scores(run.results)
    ]
    scores = corrected([score for _, _, score in shown])
    return [(run, label, score) for (run, label, _), score in zip(shown, scores, strict=True)]


def _run_name(block: dict[str, Any], label: str) -> str:
    name = block["task"]["name"]
    task = name if isinstance(name, str) else ", ".join(name)
    return f"{block['method']['name']} on {task}" + (f" ({label})" if label else "")


def _title(blocks: Sequence[dict[str, Any]]) -> str:
    """Which methods ran on which tasks; the untouched model is named if nothing else ran."""
    methods = list(dict.fromkeys(block["method"]["name"] for block in blocks))
    tasks = list(dict.fromkeys(task for block in blocks for task in block["task"]["tasks"]))
    shown = ", ".join(tasks) if len(tasks) <= 4 else f"{len(tasks)} tasks"
    return f"{', '.join([name for name in methods if name != 'base'] or methods)} on {shown}"


def _named(run: StoredRun, label: str, score: Score) -> Compared:
    name = f"{score.method} on {score.task}" + (f" ({label})" if label else "")
    return Compared(name, score, lower_is_better(run.results, score))


def _compared(run: StoredRun, score: Score) -> dict[str, dict[str, Any]]:
    """The score's comparisons with other runs than the untouched model's, by name."""
    return {
        name: asdict(each)
        for name in run.block.get("compared", {})
        for each in scores_of(against(run.results, name), score.metric)
        if each.task == score.task
    }


def _row(score: Score, label: str) -> dict[str, Any]:
    """A line of the downloads."""
    low, high = score.interval or (None, None)
    below, above = score.difference_interval or (None, None)
    return {
        "model": score.model,
        "method": score.method,
        "task": score.task,
        "settings": label,
        "metric": score.metric,
        "n": score.n,
        "value": number(score.value).replace("\u2212", "-"),
        "low": number(low).replace("\u2212", "-"),
        "high": number(high).replace("\u2212", "-"),
        "difference": number(score.difference, True).replace("\u2212", "-"),
        "difference low": number(below, True).replace("\u2212", "-"),
        "difference high": number(above, True).replace("\u2212", "-"),
        "p": "" if score.p is None else f"{score.p:.3g}",
        "marks": " ".join(score.marks),
    }


def _plots(lines: Sequence[Line], labels: dict[str, str]) -> list[Plot]:
    """Each score of a task against each cost, where two runs or more have both. `labels` are by run id."""
    plots = []
    for task, metric in dict.fromkeys((score.task, score.metric) for _, _, score in lines):
        own = [(run, score) for run, _, score in lines if (score.task, score.metric) == (task, metric)]
        for key, (axis, unit) in COSTS.items():
            points = [
                Point(labels[run.run_id], run.block["cost"][key] / unit, score.value, score.interval)
                for run, score in own
                if run.block["cost"].get(key) is not None and score.value is not None
            ]
            if len(points) > 1:
                plots.append(plot(f"{task}: {metric} against {axis}", axis, metric, points))
    return plots
