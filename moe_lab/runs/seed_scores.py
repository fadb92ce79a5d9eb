"""The mean of each score of a task over seeds, and its differences to other runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from moe_lab.results.model import RunResult
from moe_lab.results.over_seeds import crossed_mean, p_over_seeds
from moe_lab.results.randomization import randomization_test
from moe_lab.results.samples import Values, metric_values, read_samples
from moe_lab.results.seed_summary import SeedDifference, SeedScore
from moe_lab.results.statistics import (
    Aggregate,
    interval_of_difference,
    interval_of_mean,
    is_binary,
    likelihood_terms,
    mean_of_differences,
    over_seeds,
)
from moe_lab.results.task_scores import aggregation
from moe_lab.runs.run import Outcome

EqualExamples = Callable[[Sequence[Any], Sequence[Any]], list[bool]]
"""(values by example, those of another run) -> whether each pair is equal within rounding."""


@dataclass(frozen=True)
class TaskScores:
    """What a stored run has of one task."""

    scores: Mapping[str, Any]
    """By lm-eval's `metric,filter`."""
    values: Values
    """The same by document."""

    @classmethod
    def of(cls, result: RunResult, task: str) -> Self:
        """The scores and values of a stored result."""
        return cls(result.lm_eval.scores(task), metric_values(read_samples(result)[task]))


def seed_scores(name: str, outcomes: Sequence[Outcome]) -> dict[str, SeedScore]:
    """The mean of each score of a task over seeds, on the documents that all seeds have.

    By lm-eval's `metric,filter`. A metric that a seed lacks is left out.

    Args:
        name: the task.
        outcomes: one per seed.
    """
    task = outcomes[0].run.tasks["tasks"][name]
    samples = read_samples(outcomes[0].results)[name]
    words = {sample.document: sample.scored_words for sample in samples}
    rounding = outcomes[0].results.equality
    by_seed = [TaskScores.of(outcome.results, name) for outcome in outcomes]
    other_runs = _other_scores(name, outcomes)
    summaries: dict[str, SeedScore] = {}
    for metric in by_seed[0].values:
        if not all(metric in seed.values for seed in by_seed):
            continue  # a judge gave no verdict
        documents = _shared_documents(metric, by_seed)
        words_of_documents = [words[document] for document in documents]
        equal_examples = partial(rounding.equal_examples, words=words_of_documents)
        summaries[metric] = _seed_score(
            metric, documents, by_seed, other_runs, aggregation(task, metric), equal_examples
        )
    return summaries


def _seed_score(
    metric: str,
    documents: list[int],
    by_seed: Sequence[TaskScores],
    other_runs: Mapping[str, Sequence[TaskScores]],
    aggregate: Aggregate | None,
    equal_examples: EqualExamples,
) -> SeedScore:
    """The mean of one score over seeds, and its differences to the other runs that have all
    `documents`."""
    scores = [seed.scores[metric] for seed in by_seed]
    values = []
    for seed in by_seed:
        values.append([seed.values[metric][document] for document in documents])
    compared: dict[str, SeedDifference] = {}
    for other_name, runs in other_runs.items():
        if all(list(run.values.get(metric, {})) == documents for run in runs):
            compared[other_name] = difference_of(
                scores, values, runs, metric, aggregate, equal_examples
            )
    spread = over_seeds(scores)
    return SeedScore(
        values=scores,
        mean=spread.mean,
        std=spread.std,
        seed_interval=spread.interval,
        interval=interval_of_mean(values, aggregate),
        with_base=compared.pop("baseline", None),
        compared=compared,
    )


def _shared_documents(metric: str, by_seed: Sequence[TaskScores]) -> list[int]:
    """The documents that have a value in every seed."""
    documents = []
    for document in by_seed[0].values[metric]:
        if all(document in seed.values[metric] for seed in by_seed):
            documents.append(document)
    return documents


def difference_of(
    scores: Sequence[float],
    values: Sequence[Sequence[Any]],
    others: Sequence[TaskScores],
    metric: str,
    aggregate: Aggregate | None,
    equal_examples: EqualExamples,
) -> SeedDifference:
    """The mean score over seeds minus that of other runs on the same documents.

    It has no tests over documents if all seeds are equal within rounding, and for a score that is
    neither a mean nor a perplexity.

    Args:
        scores: one per seed.
        values: by seed, then by document.
        others: one run for each seed, or one for all seeds.
        aggregate: lm-eval's aggregation of the metric; None for a mean.
        equal_examples: which values of two runs are equal within rounding.
    """
    other_scores = [other_run.scores[metric] for other_run in others]
    other_values = [list(other_run.values[metric].values()) for other_run in others]
    mean = float(np.mean(other_scores))
    if len(others) == len(scores):
        by_seed = (np.asarray(scores) - other_scores).tolist()
        counterparts = other_values
    else:
        by_seed = (np.asarray(scores) - mean).tolist()
        counterparts = other_values * len(values)
    ties_SN = _ties(values, counterparts, equal_examples)
    # scores of 0 and 1 have a test also if no document changed
    all_binary = all(map(is_binary, [*values, *other_values]))
    is_equal = bool(ties_SN.all()) and not all_binary
    difference = SeedDifference(
        mean=mean,
        difference=mean_of_differences(by_seed),
        interval=interval_of_difference(values, other_values, aggregate),
        p_documents=None,
        seed_interval=over_seeds(by_seed).interval,
        p_seeds=None if is_equal else p_over_seeds(by_seed),
        equal=is_equal,
    )
    if is_equal:
        return difference
    moved = _moved(values, counterparts, ties_SN, aggregate)
    if moved is None:
        return difference
    return _with_tests(difference, moved)


def _with_tests(difference: SeedDifference, moved: Moved) -> SeedDifference:
    """The difference with its p over documents and, from five seeds on, over seeds and documents.

    The interval over both is that of the scores; perplexities have none (`Moved.factor`).
    """
    # the seeds share the documents: a swap of a document's values is the same in all of them
    means_N = moved.values_SN.mean(axis=0)
    p_documents = randomization_test(means_N.tolist(), [0.0] * len(means_N))
    difference = replace(difference, p_documents=p_documents)
    crossed = crossed_mean(moved.values_SN)
    if crossed is None:
        return difference
    if moved.factor is None:
        return replace(difference, p_both=crossed.p)
    low, high = sorted(moved.factor * limit for limit in crossed.interval)
    return replace(difference, p_both=crossed.p, both_interval=(low, high))


def _ties(
    values: Sequence[Sequence[Any]],
    counterparts: Sequence[Sequence[Any]],
    equal_examples: EqualExamples,
) -> np.ndarray:
    """Which values are equal within rounding: bool [seeds, documents]."""
    ties = []
    for seed_values, other_values in zip(values, counterparts, strict=True):
        ties.append(equal_examples(seed_values, other_values))
    return np.array(ties)


@dataclass(frozen=True)
class Moved:
    """The differences of documents whose mean is tested in place of the score."""

    values_SN: np.ndarray
    """float64 [seeds, documents]; ties are 0."""
    factor: float | None
    """Their mean times this is the difference of the scores.

    None for perplexities, which are not proportional.
    """


def _moved(
    values: Sequence[Sequence[Any]],
    counterparts: Sequence[Sequence[Any]],
    ties_SN: np.ndarray,
    aggregate: Aggregate | None,
) -> Moved | None:
    """The differences of the documents' values, or for a perplexity of their log-likelihoods.

    None for any other score that is not a mean, and for perplexities whose texts have different
    lengths in two runs.
    """
    if aggregate is not None:
        return _moved_likelihoods(values, counterparts, ties_SN, aggregate)
    differences_SN = np.asarray(values, dtype=float) - np.asarray(counterparts, dtype=float)
    return Moved(np.where(ties_SN, 0.0, differences_SN), factor=1.0)


def _moved_likelihoods(
    values: Sequence[Sequence[Any]],
    counterparts: Sequence[Sequence[Any]],
    ties_SN: np.ndarray,
    aggregate: Aggregate,
) -> Moved | None:
    """As `_moved`, of a score that is not a mean."""
    likelihoods = []
    lengths_N = None
    for run in (*values, *counterparts):
        terms = likelihood_terms(run, aggregate)
        if terms is None:
            return None
        run_likelihoods_N, run_lengths_N = terms
        if lengths_N is None:
            lengths_N = run_lengths_N
        if (run_lengths_N != lengths_N).any():
            return None
        likelihoods.append(run_likelihoods_N)
    assert lengths_N is not None
    seeds = len(values)
    differences_SN = np.array(likelihoods[:seeds]) - np.array(likelihoods[seeds:])
    factor = None
    if getattr(aggregate, "__name__", "") == "bits_per_byte":
        factor = -len(lengths_N) / (lengths_N.sum() * math.log(2))
    return Moved(np.where(ties_SN, 0.0, differences_SN), factor)


def _other_scores(task: str, outcomes: Sequence[Outcome]) -> dict[str, list[TaskScores]]:
    """The stored runs to compare with, by name: one run for all seeds, or one for each seed.

    A name is left out if one of its runs is not stored.
    """
    runs = [outcome.run for outcome in outcomes]
    scores: dict[str, list[TaskScores]] = {}
    for name in runs[0].compared_runs:
        by_id = {run.compared_runs[name].run_id: run.compared_runs[name] for run in runs}
        stored = [other_run.stored() for other_run in by_id.values()]
        whole = [result for result in stored if result is not None]
        if len(whole) == len(stored):
            scores[name] = [TaskScores.of(result, task) for result in whole]
    return scores
