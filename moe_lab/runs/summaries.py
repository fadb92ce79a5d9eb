"""Summaries over seeds: mean scores of runs that differ in the seed alone."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from moe_lab.config.schema import Config
from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.score_table import SeedGroup
from moe_lab.results.seed_summary import SeedSummary
from moe_lab.results.statistics import VERSION
from moe_lab.runs.identity import run_name
from moe_lab.runs.run import Outcome
from moe_lab.runs.seed_scores import seed_scores


def summarize(
    outcomes: Sequence[Outcome], repeated: Sequence[Sequence[str]] = ()
) -> list[SeedGroup]:
    """The outcomes by configuration, with one result per seed, and a summary of several seeds.

    `write_summaries` writes the summaries.

    Args:
        repeated: the run ids of each configuration that has a study or a model per seed. Its runs
            differ in more than the seed, and are one group, which comes after the others.
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
        groups.setdefault(_without_seed(outcome.run.config), []).append(outcome)
    return [_group(group) for group in (*groups.values(), *repeated_groups)]


def _without_seed(config: Config) -> str:
    """A text that is equal for configurations that differ in the seed alone."""
    # their overrides name the seed
    return repr(replace(config, seed=0, overrides=[]))


def _group(outcomes: Sequence[Outcome]) -> SeedGroup:
    """The results of one configuration, each once, and their summary if there are several."""
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
    """The mean of each score of a configuration over seeds, and its differences to other runs."""
    results = [outcome.results for outcome in outcomes]
    first = results[0]
    older = next((result for result in results if result.version_notes), first)
    studies = [result.tuning["study"] for result in results if result.tuning]
    scores = {}
    for task in first.task.tasks:
        scores[task] = seed_scores(task, outcomes)
    return SeedSummary(
        first=first,
        partial=any(result.partial for result in results),
        versions=older.versions,
        statistics=VERSION,
        seeds=[outcome.run.config.seed for outcome in outcomes],
        studies=list(dict.fromkeys(studies)),
        run_ids=[result.run_id for result in results],
        scores=scores,
    )
