"""Summaries over seeds: mean scores of runs that differ in the seed alone, in `outputs/summaries/`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.model import RunResult
from moe_lab.results.samples import Values, metric_values, read_samples
from moe_lab.results.score_table import SeedGroup
from moe_lab.results.seed_summary import SeedDifference, SeedScore, SeedSummary
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
from moe_lab.results.task_scores import aggregation
from moe_lab.runs.identity import run_name
from moe_lab.runs.run import Outcome


def summarize(
    outcomes: Sequence[Outcome], repeated: Sequence[Sequence[str]] = ()
) -> list[SeedGroup]:
    """The outcomes by configuration, with one result per seed. `write_summaries` writes the summaries.

    `repeated`: the run ids of each configuration that has a study or a model per seed.
    """
    by_id = {outcome.run.run_id: outcome for outcome in outcomes}
    repeated_groups: list[list[Outcome]] = []
    in_repeated: set[str] = set()
    for run_ids in repeated:
        group = [by_id[run_id] for run_id in run_ids if run_id in by_id]
        if len(group) > 1:
            repeated_groups.append(group)
            in_repeated.update(outcome.run.run_id for outcome in group)
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.run.run_id in in_repeated:
            continue
        # the seeds of a configuration may differ only in their overrides and in the place where they ran
        config = replace(outcome.run.config, seed=0, overrides=[])
        groups.setdefault(repr(config), []).append(outcome)
    return [_group(group) for group in (*groups.values(), *repeated_groups)]


def _group(outcomes: Sequence[Outcome]) -> SeedGroup:
    by_id = {outcome.results.run_id: outcome.results for outcome in outcomes}
    results = list(by_id.values())
    if len(results) < 2:
        return SeedGroup(results)
    config = outcomes[0].run.config
    run_ids = []
    for outcome in outcomes:
        run_ids.append(outcome.run.run_id)
        run_ids.extend(run.run_id for run in outcome.run.compared_runs.values())
    digest = hashlib.sha256(" ".join(run_ids).encode()).hexdigest()
    file = Path(config.output_dir) / "summaries" / f"{run_name(config, digest)}.json"
    return SeedGroup(results, summary(outcomes), file)


def write_summaries(groups: Sequence[SeedGroup]) -> None:
    """Write the summary of each configuration that has several seeds."""
    for group in groups:
        if group.file is not None:
            write_file(group.file, json_text(group.summary))


def summary(outcomes: Sequence[Outcome]) -> SeedSummary:
    """The summary of one configuration: the mean of each score over seeds, and its differences to other runs."""
    results = [outcome.results for outcome in outcomes]
    first = results[0]
    older = next((result for result in results if result.version_notes), first)
    studies = [result.tuning["study"] for result in results if result.tuning]
    return SeedSummary(
        first=first,
        partial=any(result.partial for result in results),
        versions=older.versions,
        statistics=VERSION,
        seeds=[outcome.run.config.seed for outcome in outcomes],
        studies=list(dict.fromkeys(studies)),
        run_ids=[result.run_id for result in results],
        scores={name: _scores(name, outcomes) for name in first.task.tasks},
    )


@dataclass(frozen=True)
class TaskScores:
    """What a stored run has of one task."""

    scores: Mapping[str, Any]
    """By lm-eval's `metric,filter`."""
    values: Values
    """The same by document."""

    @classmethod
    def of(cls, result: RunResult, task: str) -> Self:
        return cls(result.lm_eval.scores(task), metric_values(read_samples(result)[task]))


def _scores(name: str, outcomes: Sequence[Outcome]) -> dict[str, SeedScore]:
    """The mean of each score of a task over seeds, on the documents that all seeds have."""
    task = outcomes[0].run.tasks["tasks"][name]
    samples = read_samples(outcomes[0].results)[name]
    words = {sample.document: sample.scored_words for sample in samples}
    rounding = outcomes[0].results.equality
    by_seed = [TaskScores.of(outcome.results, name) for outcome in outcomes]
    others = _other_scores(name, outcomes)
    first, *rest = by_seed
    summaries: dict[str, SeedScore] = {}
    for metric in first.values:
        if any(metric not in seed.values for seed in rest):
            continue  # a judge gave no verdict
        shared = [
            document
            for document in first.values[metric]
            if all(document in seed.values[metric] for seed in rest)
        ]
        aggregate = aggregation(task, metric)
        scores = [seed.scores[metric] for seed in by_seed]
        values = [[seed.values[metric][document] for document in shared] for seed in by_seed]
        near = partial(rounding.equals, words=[words[document] for document in shared])
        compared: dict[str, SeedDifference] = {}
        for key, runs in others.items():
            if all(list(run.values.get(metric, {})) == shared for run in runs):
                compared[key] = _difference(scores, values, runs, metric, aggregate, near)
        spread = over_seeds(scores)
        summaries[metric] = SeedScore(
            values=scores,
            mean=spread.mean,
            std=spread.std,
            seed_interval=spread.interval,
            interval=interval_of_mean(values, aggregate),
            with_base=compared.pop("baseline", None),
            compared=compared,
        )
    return summaries


def _difference(
    scores: Sequence[float],
    values: Sequence[Sequence[Any]],
    others: Sequence[TaskScores],
    metric: str,
    aggregate: Aggregate | None,
    near: Callable[[Sequence[Any], Sequence[Any]], list[bool]],
) -> SeedDifference:
    """The mean score minus that of other runs on the same documents: one other run for each seed, or one for all.

    `near` says which values of two runs are equal within rounding.
    """
    other_scores = [other.scores[metric] for other in others]
    other_values = [list(other.values[metric].values()) for other in others]
    mean = float(np.mean(other_scores))
    of_each_seed = len(others) == len(scores)
    by_seed = (np.asarray(scores) - (other_scores if of_each_seed else mean)).tolist()
    counterparts = other_values if of_each_seed else other_values * len(values)
    ties = np.array([near(mine, other) for mine, other in zip(values, counterparts, strict=True)])
    binary = all(map(is_binary, [*values, *other_values]))
    equal = bool(ties.all()) and not binary
    difference = SeedDifference(
        mean=mean,
        difference=mean_of_differences(by_seed),
        interval=interval_of_difference(values, other_values, aggregate),
        p_documents=None,
        seed_interval=over_seeds(by_seed).interval,
        p_seeds=None if equal else p_over_seeds(by_seed),
        equal=equal,
    )
    moved = None if equal else _moved(values, counterparts, ties, aggregate)
    if moved is None:
        return difference
    # the seeds share the documents: a swap of a document's values is the same in all of them
    means_N = moved.values_SN.mean(axis=0)
    p_documents = randomization_test(means_N.tolist(), [0.0] * len(means_N))
    difference = replace(difference, p_documents=p_documents)
    both = crossed_mean(moved.values_SN)
    if both is None:
        return difference
    if moved.factor is None:
        return replace(difference, p_both=both.p)
    low, high = sorted(moved.factor * limit for limit in both.interval)
    return replace(difference, p_both=both.p, both_interval=(low, high))


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
    if aggregate is None:
        differences_SN = np.asarray(values, dtype=float) - np.asarray(others, dtype=float)
        return Moved(np.where(ties, 0.0, differences_SN), factor=1.0)
    terms = [likelihood_terms(run, aggregate) for run in (*values, *others)]
    known = [term for term in terms if term is not None]
    if len(known) < len(terms):
        return None
    lengths_N = known[0][1]
    if any((lengths != lengths_N).any() for _, lengths in known):
        return None
    likelihoods = np.array([likelihoods_N for likelihoods_N, _ in known])
    differences_SN = likelihoods[: len(values)] - likelihoods[len(values) :]
    factor = None
    if getattr(aggregate, "__name__", "") == "bits_per_byte":
        factor = -len(lengths_N) / (lengths_N.sum() * math.log(2))
    return Moved(np.where(ties, 0.0, differences_SN), factor)


def _other_scores(task: str, outcomes: Sequence[Outcome]) -> dict[str, list[TaskScores]]:
    """The stored runs to compare with, by name: one run for all seeds, or one for each seed."""
    runs = [outcome.run for outcome in outcomes]
    scores: dict[str, list[TaskScores]] = {}
    for name in runs[0].compared_runs:
        others = {run.compared_runs[name].run_id: run.compared_runs[name] for run in runs}
        stored = [other.stored() for other in others.values()]
        whole = [result for result in stored if result is not None]
        if len(whole) == len(stored):
            scores[name] = [TaskScores.of(result, task) for result in whole]
    return scores
