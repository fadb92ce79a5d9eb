"""Summaries over seeds: mean scores of runs that differ in the seed alone, in `outputs/summaries/`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.model import RunResult
from moe_lab.results.samples import Values, aggregation, metric_values, read_samples
from moe_lab.results.score_table import SeedGroup
from moe_lab.results.significance import crossed_mean, p_over_seeds, randomization_test
from moe_lab.results.statistics import (
    VERSION,
    Aggregate,
    interval_of_difference,
    interval_of_mean,
    is_binary,
    likelihood_terms,
    mean_of_differences,
    over_seeds,
)
from moe_lab.runs.prepare import run_name
from moe_lab.runs.run import Outcome, Run


def summarize(
    outcomes: Sequence[Outcome], repeated: Sequence[Sequence[str]] = ()
) -> list[SeedGroup]:
    """The outcomes by configuration, with one result per seed. `write_summaries` writes the summaries.

    `repeated`: the run ids of each configuration that has a study or a model per seed.
    """
    by_id = {outcome.run.run_id: outcome for outcome in outcomes}
    own = [[by_id[run_id] for run_id in run_ids if run_id in by_id] for run_ids in repeated]
    grouped = {outcome.run.run_id for group in own if len(group) > 1 for outcome in group}
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.run.run_id in grouped:
            continue
        # the seeds of a configuration may differ only in their overrides and in the place where they ran
        config = replace(outcome.run.config, seed=0, overrides=[])
        groups.setdefault(repr(config), []).append(outcome)
    return [*map(_group, groups.values()), *(_group(group) for group in own if len(group) > 1)]


def _group(outcomes: Sequence[Outcome]) -> SeedGroup:
    results = list({one.results.run_id: one.results for one in outcomes}.values())
    if len(results) < 2:
        return SeedGroup(results)
    config = outcomes[0].run.config
    runs = [
        run for outcome in outcomes for run in (outcome.run, *outcome.run.compared_runs.values())
    ]
    digest = hashlib.sha256(" ".join(run.run_id for run in runs).encode()).hexdigest()
    file = Path(config.output_dir) / "summaries" / f"{run_name(config, digest)}.json"
    return SeedGroup(results, summary(outcomes), file)


def write_summaries(groups: Sequence[SeedGroup]) -> None:
    """Write the summary of each configuration that has several seeds."""
    for group in groups:
        if group.file is not None:
            write_file(group.file, json_text(group.summary))


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Per task and metric: the mean over seeds, their standard deviation, and two 95% intervals.

    `ci95_documents` resamples documents, `ci95_seeds` is Student's interval over seeds. `difference` is the mean minus
    `base`, the score of the base model. It has both intervals and the p of both tests, and from five seeds on an
    interval and a p over seeds and documents together (`results/significance.py`), or `equal` and no p where all seeds
    are equal within rounding. `compared` has the same for the other comparisons by name. With one study in `studies`
    the spread over seeds is that of the evaluation alone; with one study per seed it includes the search. `versions`
    are those of the runs; if they differ, those of a run that was computed with other versions than the installed ones.
    """
    results = [outcome.results for outcome in outcomes]
    first = results[0]
    older = next((result for result in results if result.version_notes), first)
    return first.settings | {
        "schema_version": 1,
        "partial": any(result.partial for result in results),
        "versions": older.versions,
        "statistics": VERSION,
        "overrides": first.overrides,
        "seeds": [outcome.run.config.seed for outcome in outcomes],
        "studies": list(
            dict.fromkeys(result.tuning["study"] for result in results if result.tuning)
        ),
        "run_ids": [result.run_id for result in results],
        "scores": {name: _scores(name, outcomes) for name in first.tasks},
    }


def _scores(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    task = outcomes[0].run.tasks["tasks"][name]
    samples = read_samples(outcomes[0].results)[name]
    words = {sample.document: sample.scored_words for sample in samples}
    values = [
        metric_values(samples),
        *(_stored(outcome.results, name)[1] for outcome in outcomes[1:]),
    ]
    rounding = outcomes[0].results.rounding
    others = {
        key: [_stored(run.stored(), name) for run in runs]
        for key, runs in _compared_runs(outcomes).items()
    }
    summaries: dict[str, dict[str, Any]] = {}
    for metric in values[0]:
        if any(metric not in one for one in values):
            continue  # a judge gave no verdict
        shared = [one for one in values[0][metric] if all(one in other[metric] for other in values)]
        scores = [outcome.results.results[name][metric] for outcome in outcomes]
        by_document = [[one[metric][document] for document in shared] for one in values]
        seeds = over_seeds(scores)
        summaries[metric] = {
            "values": scores,
            "mean": seeds.mean,
            "std": seeds.std,
            "ci95_seeds": seeds.interval,
            "ci95_documents": interval_of_mean(by_document, aggregation(task, metric)),
        }
        near = partial(rounding.equals, words=[words[document] for document in shared])
        compared = {
            key: _difference(scores, by_document, runs, metric, aggregation(task, metric), near)
            for key, runs in others.items()
            if all(list(own.get(metric, {})) == shared for _, own in runs)
        }
        if "baseline" in compared:
            base = compared.pop("baseline")
            summaries[metric] |= {"base": base.pop("mean"), **base}
        if compared:
            summaries[metric]["compared"] = compared
    return summaries


def _difference(
    scores: Sequence[float],
    by_document: Sequence[Sequence[Any]],
    others: Sequence[Stored],
    metric: str,
    aggregate: Aggregate | None,
    near: Callable[[Sequence[Any], Sequence[Any]], list[bool]],
) -> dict[str, Any]:
    """The mean score minus that of other runs on the same documents: one other run for each seed, or one for all.

    `near` says which values of two runs are equal within rounding.
    """
    theirs = [other[metric] for other, _ in others]
    values = [list(other[metric].values()) for _, other in others]
    mean = float(np.mean(theirs))
    by_seed = (np.asarray(scores) - (theirs if len(theirs) == len(scores) else mean)).tolist()
    each = values if len(values) == len(by_document) else values * len(by_document)
    ties = np.array([near(mine, other) for mine, other in zip(by_document, each, strict=True)])
    equal = bool(ties.all()) and not all(map(is_binary, [*by_document, *values]))
    moved = None if equal else _moved(by_document, each, ties, aggregate)
    return {
        "mean": mean,
        "difference": mean_of_differences(by_seed),
        "difference_ci95_documents": interval_of_difference(by_document, values, aggregate),
        # the seeds share the documents: a swap of a document's values is the same in all of them
        "difference_p_documents": None
        if moved is None
        else randomization_test(
            moved.values_SN.mean(axis=0).tolist(), [0.0] * moved.values_SN.shape[1]
        ),
        "difference_ci95_seeds": over_seeds(by_seed).interval,
        "difference_p_seeds": None if equal else p_over_seeds(by_seed),
        "equal": equal,
        **({} if moved is None else _over_both(moved)),
    }


@dataclass(frozen=True)
class Moved:
    """The differences of documents whose mean is tested in place of the score."""

    values_SN: np.ndarray
    """float64 [seeds, documents]; ties are 0."""
    factor: float | None
    """Their mean times this is the difference of the scores; None for perplexities, which are not proportional."""


def _moved(
    values: Sequence[Sequence[Any]],
    others: Sequence[Sequence[Any]],
    ties: np.ndarray,
    aggregate: Aggregate | None,
) -> Moved | None:
    """For a perplexity the differences of its log-likelihoods; None for any other score that is not a mean."""
    mine, theirs, factor = values, others, 1.0
    if aggregate is not None:
        terms = [likelihood_terms(run, aggregate) for run in (*values, *others)]
        known = [term for term in terms if term is not None]
        if len(known) < len(terms) or any((term[1] != known[0][1]).any() for term in known):
            return None
        mine, theirs = (
            [term[0] for term in known[: len(values)]],
            [term[0] for term in known[len(values) :]],
        )
        lengths_N = known[0][1]
        factor = -len(lengths_N) / (lengths_N.sum() * math.log(2))  # of bits per byte
    differences_SN = np.asarray(mine, dtype=float) - np.asarray(theirs, dtype=float)
    proportional = aggregate is None or getattr(aggregate, "__name__", "") == "bits_per_byte"
    return Moved(np.where(ties, 0.0, differences_SN), factor if proportional else None)


def _over_both(moved: Moved) -> dict[str, Any]:
    """The p and the interval over seeds and documents together; empty with too few seeds."""
    both = crossed_mean(moved.values_SN)
    if both is None:
        return {}
    found: dict[str, Any] = {"difference_p_both": both.p}
    if moved.factor is not None:
        found["difference_ci95_both"] = sorted(moved.factor * limit for limit in both.interval)
    return found


def _compared_runs(outcomes: Sequence[Outcome]) -> dict[str, list[Run]]:
    """The stored runs to compare with, by name: one run for all seeds, or one for each seed."""
    runs = [outcome.run for outcome in outcomes]
    by_name = {name: [run.compared_runs[name] for run in runs] for name in runs[0].compared_runs}
    distinct = {
        name: list({run.run_id: run for run in others}.values()) for name, others in by_name.items()
    }
    return {name: others for name, others in distinct.items() if all(run.done for run in others)}


Stored = tuple[dict[str, float], Values]
"""The scores of a stored run on one task, and their values by document."""


def _stored(result: RunResult | None, task: str) -> Stored:
    assert result is not None
    return dict(result.scores(task)), metric_values(read_samples(result)[task])
