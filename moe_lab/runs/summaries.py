"""Summaries over seeds: the same run with several seeds as one score, in `outputs/summaries/`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moe_lab.results.atomic import write_json, writing
from moe_lab.results.folder import version_marks
from moe_lab.results.samples import Values, aggregation, metric_values, read_samples
from moe_lab.results.statistics import (
    VERSION,
    Aggregate,
    Interval,
    interval_of_difference,
    interval_of_mean,
    over_seeds,
)
from moe_lab.runs.identity import run_name

if TYPE_CHECKING:
    from moe_lab.runs.run import Outcome, Run


def summarize(outcomes: Sequence[Outcome], repeated: Sequence[Sequence[str]] = ()) -> list[Path]:
    """Write one summary for every run that was made with at least two seeds. Returns the files' paths.

    Args:
        repeated: the run ids of each configuration that has a study per seed (`tuning.seeds`).
    """
    same: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        # what was typed (`overrides`) and where it ran may differ between seeds; what was asked may not
        config = replace(outcome.run.config, seed=0, overrides=[])
        same.setdefault(repr(config), []).append(outcome)
    ended = {outcome.run.run_id: outcome for outcome in outcomes}
    for run_ids in repeated:
        same[" ".join(run_ids)] = [ended[run_id] for run_id in run_ids if run_id in ended]
    return [_write(group) for group in same.values() if len({one.run.run_id for one in group}) > 1]


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Per task and metric: the mean over seeds, their standard deviation, and two 95% intervals.

    `ci95_documents` resamples documents (other questions), `ci95_seeds` is Student's over seeds (other draws of the
    method's noise), `difference` is the mean minus `base`, the untouched model, with both intervals. `compared` has the
    same by name for what else each seed is compared with. `studies` are those of the runs: with one for all, the spread
    is that of the evaluation alone; with one per seed it is that of the search, too.
    `versions` are those of the runs: where they differ, of one that others made.
    """
    blocks = [outcome.results["moe_lab"] for outcome in outcomes]
    first = blocks[0]
    told = {key: first[key] for key in ("untuned", "tuning", "judges") if key in first}
    return {
        "schema_version": 1,
        "model": first["model"],
        "method": first["method"],
        "task": first["task"],
        "partial": any(block["partial"] for block in blocks),
        **told,
        "versions": next((block for block in blocks if version_marks(block)), first)["versions"],
        "statistics": VERSION,
        "overrides": first["overrides"],
        "seeds": [outcome.run.config.seed for outcome in outcomes],
        "studies": list(dict.fromkeys(block["tuning"]["study"] for block in blocks if "tuning" in block)),
        "run_ids": [outcome.run.run_id for outcome in outcomes],
        "scores": {name: _scores(name, outcomes) for name in first["task"]["tasks"]},
    }


def _write(outcomes: Sequence[Outcome]) -> Path:
    config = outcomes[0].run.config
    runs = [run for outcome in outcomes for run in (outcome.run, *outcome.run.needed.values())]
    digest = hashlib.sha256(" ".join(run.run_id for run in runs).encode()).hexdigest()
    path = Path(config.output_dir) / "summaries" / f"{run_name(config, digest)}.json"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, summary(outcomes))
    return path


def _scores(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    task = outcomes[0].run.tasks["tasks"][name]
    values = [_values(outcome.run, outcome.results, name) for outcome in outcomes]
    others = {key: [_Other.read(run, name) for run in runs] for key, runs in _needed(outcomes).items()}
    found = {}
    for metric in values[0]:
        if any(metric not in one for one in values):
            continue  # a judge that judged nothing
        shared = [one for one in values[0][metric] if all(one in other[metric] for other in values)]
        scores = [outcome.results["results"][name][metric] for outcome in outcomes]
        by_document = [[one[metric][document] for document in shared] for one in values]
        seeds = over_seeds(scores)
        found[metric] = {
            "values": scores,
            "mean": seeds["mean"],
            "std": seeds["std"],
            "ci95_seeds": seeds["ci95"],
            "ci95_documents": _list(interval_of_mean(by_document, aggregation(task, metric))),
        }
        compared = {
            key: _difference(scores, by_document, runs, metric, aggregation(task, metric))
            for key, runs in others.items()
            if all(list(run.values.get(metric, {})) == shared for run in runs)
        }
        if "baseline" in compared:
            base = compared.pop("baseline")
            found[metric] |= {"base": base.pop("mean"), **base}
        if compared:
            found[metric]["compared"] = compared
    return found


def _difference(
    scores: Sequence[float],
    by_document: Sequence[Sequence[Any]],
    others: Sequence[_Other],
    metric: str,
    aggregate: Aggregate | None,
) -> dict[str, Any]:
    """The mean of scores minus that of other runs on the same documents: one for each seed, or one for all."""
    theirs = [other.scores[metric] for other in others]
    values = [list(other.values[metric].values()) for other in others]
    mean = float(np.mean(theirs))
    told = {
        "mean": mean,
        "difference": float(np.mean(scores)) - mean,
        "difference_ci95_documents": _list(interval_of_difference(by_document, values, aggregate)),
    }
    by_seed = np.asarray(scores) - (theirs if len(theirs) == len(scores) else mean)
    return told | {"difference_ci95_seeds": over_seeds(by_seed.tolist())["ci95"]}


@dataclass(frozen=True)
class _Other:
    """What a stored run has of one task."""

    scores: dict[str, float]
    values: Values

    @classmethod
    def read(cls, run: Run, task: str) -> _Other:
        stored = run.stored()
        assert stored is not None
        return cls(stored["results"][task], _values(run, stored, task))


def _needed(outcomes: Sequence[Outcome]) -> dict[str, list[Run]]:
    """What the runs are compared with, by name, as far as it is stored: one run for all seeds, or one for each."""
    runs = [outcome.run for outcome in outcomes]
    found = {name: {run.needed[name].run_id: run.needed[name] for run in runs} for name in runs[0].needed}
    return {name: list(own.values()) for name, own in found.items() if all(run.done for run in own.values())}


def _values(run: Run, results: dict[str, Any], task: str) -> Values:
    return metric_values(read_samples(run.folder, results)[task])


def _list(interval: Interval | None) -> list[float] | None:
    return list(interval) if interval else None
