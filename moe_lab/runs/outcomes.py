"""The stored results of a command's jobs, and the table of their scores."""

from collections.abc import Sequence

from moe_lab.reports.expert import comparisons
from moe_lab.reports.scores import CommandTable
from moe_lab.results.model import RunResult
from moe_lab.results.score import ComparisonKey
from moe_lab.results.score_table import SeedGroup, family_of
from moe_lab.runs.jobs import Job, distinct_runs, repeated_studies, with_baselines
from moe_lab.runs.run import Outcome
from moe_lab.runs.summaries import summarize


def stored_outcomes(jobs: Sequence[Job]) -> list[Outcome]:
    """The stored results of the jobs' runs. Nothing is computed."""
    outcomes = []
    for run in distinct_runs(jobs):
        stored = run.stored()
        if stored is not None:
            outcomes.append(Outcome(run, stored, stored=True))
    return outcomes


def with_compared(outcomes: Sequence[Outcome]) -> list[RunResult]:
    """The results in their order, each once and after the results that it is compared with."""
    by_id = {outcome.run.run_id: outcome.results for outcome in outcomes}
    results = []
    for run in with_baselines([outcome.run for outcome in outcomes]):
        result = by_id[run.run_id] if run.run_id in by_id else run.stored()
        if result is not None:
            results.append(result)
    return results


def results_with_metrics(outcomes: Sequence[Outcome], metrics: str) -> list[RunResult]:
    """The results that the table of `metrics=expert` or of `metrics=confidence` shows."""
    measured = [outcome for outcome in outcomes if outcome.run.config.metrics == metrics]
    return with_compared(measured)


def command_table(outcomes: Sequence[Outcome], jobs: Sequence[Job]) -> CommandTable:
    """The scores of a command, and the families of its comparisons."""
    groups = summarize(outcomes, repeated_studies(jobs))
    controls = controls_of(outcomes, groups)
    not_asked = {control.results[0].run_id for control in controls}
    family = family_of([*groups, *controls], measured_p_values(outcomes), not_asked)
    return CommandTable(with_compared(outcomes), groups, family)


def controls_of(outcomes: Sequence[Outcome], groups: Sequence[SeedGroup]) -> list[SeedGroup]:
    """The stored runs that others are compared with and that were not asked for.

    Each is a group of its own. Calibration is one of them. Those of a run with several seeds are
    left out, because a single seed has no test.
    """
    single = {group.results[0].run_id for group in groups if group.summary is None}
    asked_ids = {outcome.run.run_id for outcome in outcomes}
    controls: dict[str, SeedGroup] = {}
    for outcome in outcomes:
        if outcome.run.run_id not in single:
            continue
        for run in outcome.run.compared_runs.values():
            if run.run_id in asked_ids:
                continue
            stored = run.stored()
            if stored is not None:
                controls[run.run_id] = SeedGroup([stored])
    return list(controls.values())


def measured_p_values(outcomes: Sequence[Outcome]) -> dict[ComparisonKey, float | None]:
    """The uncorrected p of each comparison in the table of `metrics=expert`."""
    return comparisons(results_with_metrics(outcomes, "expert"))
