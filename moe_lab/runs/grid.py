"""`mode=run`, `mode=plan` and `mode=report` for the configurations of a grid, and uploads to the hub."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.recorded import recorded
from moe_lab.config.schema import Config, TuningConfig
from moe_lab.errors import ConfigError, MoeLabError, RunHeldError, exit_code
from moe_lab.methods import get_method
from moe_lab.methods.method import ModelMaker, TrainingMethod
from moe_lab.reports.expert import comparisons, print_expert_metrics
from moe_lab.results.atomic import write_atomically
from moe_lab.results.identity import folder_name, task_label
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import Family, SeedGroup, family_of
from moe_lab.results.scores import Comparison, shown_scores
from moe_lab.runs.attempts import Failure, grid_exit_code, is_worker, report_failures, run_all
from moe_lab.runs.distributed import run_distributed
from moe_lab.runs.jobs import (
    Job,
    by_model,
    distinct_runs,
    jobs_of,
    repeated_studies,
    seeds_of,
    with_baselines,
)

if TYPE_CHECKING:
    from moe_lab.models.hub import Upload
    from moe_lab.reports.scores import CommandTable
    from moe_lab.runs.plan import Plan
    from moe_lab.runs.run import Outcome, Run

FOOTNOTES = 8
"""Most lines of methods below the tables of a command."""
NOTHING_STORED = "Nothing of this is stored yet. The same command with mode=run computes it."


def run_grid(configs: Sequence[Config]) -> int:
    """Run every configuration and print one table. Returns the exit code."""
    _check_keys(configs)
    return run_distributed(configs, lambda: _run(configs))


def _run(configs: Sequence[Config]) -> int:
    from moe_lab.models.memory import ModelPool
    from moe_lab.reports.terminal import print_failed, print_studies

    evaluating = [
        one.method.name for one in configs if not issubclass(get_method(one.method.name), ModelMaker)
    ]
    if len(evaluating) < len(configs):
        if evaluating:
            raise ConfigError(f"method={evaluating[0]} evaluates and others of this grid train. Train first.")
        for config in (seeded for each in configs for seeded in seeds_of(each)):
            maker: Any = get_method(config.method.name)(config.method)
            print(maker.train(config))
        return 0
    jobs = jobs_of(configs)
    check_uploads(jobs)
    outcomes, failures = run_all(jobs, ModelPool(), wait=configs[0].wait)
    alone = len(jobs) == 1 and len(jobs[0].runs) < 2
    if is_worker():
        report_failures(failures, alone)
        return grid_exit_code([failure.error for failure in failures])
    print_studies([study.folder for job in jobs for study in job.studies])
    if failures and not alone:
        print_failed(_failed(failures))
    if outcomes:
        table = _show(outcomes, jobs)
        _log_table(outcomes, jobs, table)
        failures += push_all(outcomes, table.family)
    report_failures(failures, alone)
    errors = [failure.error for failure in failures]
    return exit_code(errors[0]) if errors and alone else grid_exit_code(errors)


def _failed(failures: Sequence[Failure]) -> dict[str, tuple[str, str]]:
    """The state and the reason of each cell without a result."""
    states: dict[type[BaseException], str] = {RunHeldError: "held", KeyboardInterrupt: "interrupted"}
    return {
        one.name: (states.get(type(one.error), "failed"), str(one.error).partition("\n")[0])
        for one in failures
    }


def planned(configs: Sequence[Config]) -> Plan:
    """The plan of the grid, after its pilots. Loads no weights and writes nothing without them.

    Raises ConfigError with all that is missing if no configuration can run.
    """
    from moe_lab.runs.plan import lacks_of, plan_of

    _check_keys(configs)
    jobs: list[Job] = []
    refused: dict[str, list[Config]] = {}
    for config in configs:
        try:
            jobs += jobs_of([config])
        except MoeLabError as error:
            for reason in lacks_of(config, error):
                refused.setdefault(reason, []).append(config)
    if not jobs:
        raise ConfigError("\n".join(refused))
    jobs = by_model(jobs)
    if configs[0].pilot is not None:
        from moe_lab.runs.speeds import run_pilots

        run_pilots(jobs, configs[0].pilot)
    return plan_of(jobs, refused)


def report_grid(configs: Sequence[Config]) -> int:
    """Print the table of stored results and write their page; without a run to report on, list all that is stored.

    Raises ConfigError if there are none.
    """
    typed = {text.lstrip("+").partition("=")[0] for text in configs[0].overrides}
    if len(configs) == 1 and typed <= {"mode", "output_dir"}:
        from moe_lab.reports.pages.listing_page import write_listing_page

        output = Path(configs[0].output_dir)
        if (page := write_listing_page(output)) is None:
            raise ConfigError(f"Nothing is stored in {output}. output_dir= names another folder.")
        print(page)
        return 0
    _check_keys(configs)
    jobs = jobs_of(configs, compute=False)
    missing = [str(run.folder) for run in distinct_runs(jobs) if not run.done]
    for name in [*(job.name for job in jobs if not job.runs), *missing]:
        print(f"Not stored yet: {name}", file=sys.stderr)
    outcomes = stored_outcomes(jobs)
    if not outcomes:
        raise ConfigError(NOTHING_STORED)
    _show(outcomes, jobs)
    return 0


def stored_outcomes(jobs: Sequence[Job]) -> list[Outcome]:
    """The stored results of the jobs' runs. Nothing is computed."""
    from moe_lab.models.memory import ModelPool
    from moe_lab.runs.execute import execute

    return [execute(run, ModelPool(), compute=False) for run in distinct_runs(jobs) if run.done]


def _log_table(outcomes: Sequence[Outcome], jobs: Sequence[Job], table: CommandTable) -> None:
    """Send the score table of a command with several runs to its logger."""
    from moe_lab.reports.frames import score_frame
    from moe_lab.reports.loggers import open_logger

    config, group = jobs[0].config, jobs[0].group
    if group is None or config.logger.name == "none":
        return
    runs = [outcome.run for outcome in outcomes]
    configs = {run.run_id: run.config for run in with_baselines(runs)}
    with open_logger(config, kind="command", name=group, group=group) as logger:
        logger.log_table("scores", score_frame(table, configs, [run.config for run in runs]))


def _show(outcomes: Sequence[Outcome], jobs: Sequence[Job]) -> CommandTable:
    """Write the summaries over seeds and the page, then print the tables and the paths of all files."""
    from moe_lab.runs.summaries import write_summaries

    table = command_table(outcomes, jobs)
    write_summaries(table.groups)
    page = write_report(outcomes, table)
    print_results(outcomes, table)
    for group in table.groups:
        if group.file is not None:
            print(group.file)
    print(page)
    for outcome in outcomes:
        print(outcome.path)
    return table


def command_table(outcomes: Sequence[Outcome], jobs: Sequence[Job]) -> CommandTable:
    """The scores of a command, and the families of its comparisons.

    Runs that others are compared with, such as calibration, are groups of their own. Those of a run with several seeds
    are left out, because a single seed has no test.
    """
    from moe_lab.reports.scores import CommandTable
    from moe_lab.runs.summaries import summarize

    groups = summarize(outcomes, repeated_studies(jobs))
    single = {group.results[0].run_id for group in groups if group.summary is None}
    shown = {outcome.run.run_id for outcome in outcomes}
    runs = [run for one in outcomes if one.run.run_id in single for run in one.run.compared_runs.values()]
    controls = {run.run_id: run.stored() for run in runs if run.run_id not in shown}
    others = [SeedGroup([stored]) for stored in controls.values() if stored is not None]
    not_asked = {result.run_id for group in others for result in group.results}
    family = family_of([*groups, *others], measured_p_values(outcomes), not_asked)
    return CommandTable(with_compared(outcomes), groups, family)


def measured_p_values(outcomes: Sequence[Outcome]) -> dict[Comparison, float | None]:
    """The uncorrected p of each comparison in the tables of `metrics=`."""
    return comparisons(_measured(outcomes))


def _measured(outcomes: Sequence[Outcome]) -> list[RunResult]:
    """The results that the table of `metrics=` shows."""
    return with_compared([one for one in outcomes if one.run.config.metrics != "none"])


def _check_keys(configs: Sequence[Config]) -> None:
    """Raise ConfigError for several headline metrics of one run, and for keys of `tuning` where nothing is tuned."""
    asked: dict[str, str | None] = {}
    for config in configs:
        same = repr(replace(config, task=replace(config.task, metric=None), overrides=[]))
        if asked.setdefault(same, config.task.metric) != config.task.metric:
            raise ConfigError(
                f"task.metric={asked[same]},{config.task.metric}: a run has all metrics of its task, and a table shows "
                "one of them. Give one; the page and the run's results.json have all."
            )
    if any(config.tuning.name != "none" for config in configs):
        return
    defaults = asdict(TuningConfig())
    for key, value in recorded(configs[0])["tuning"].items():
        if value != defaults[key]:
            raise ConfigError(
                f"tuning.{key}={value} changes nothing: nothing is tuned. Add tuning=tpe or tuning=uniform, or leave "
                "it out."
            )


def with_compared(outcomes: Sequence[Outcome]) -> list[RunResult]:
    """The results in their order, each once and after the results that it is compared with."""
    ordered: dict[str, RunResult] = {}
    for outcome in outcomes:
        for other in outcome.run.compared_runs.values():
            if (stored := other.stored()) is not None:
                ordered.setdefault(other.run_id, stored)
        ordered.setdefault(outcome.run.run_id, outcome.results)
    return list(ordered.values())


def print_results(outcomes: Sequence[Outcome], table: CommandTable) -> None:
    """Print the tables of results and of metrics, each run after those that it is compared with."""
    from moe_lab.reports.terminal import print_scores

    lines = sorted({line for run in table.runs for line in get_method(run.method).footnotes(run["moe_lab"])})
    if len(lines) > FOOTNOTES:
        lines[FOOTNOTES:] = [f"{len(lines) - FOOTNOTES} more lines about other runs: see their pages."]
    print_scores(table, lines)
    print_expert_metrics(_measured(outcomes), table.family)


def write_report(outcomes: Sequence[Outcome], table: CommandTable) -> Path:
    """Write the page of a grid, and `report.html`, a copy of the newest page, whose path is returned.

    The page is `<models>-<methods>-<tasks>-<id8>.html`, where the id is the SHA-256 of the run ids: the same runs have
    the same page, whatever their order.
    """
    from moe_lab.reports.pages.runs_page import write_runs_page

    results = [outcome.results for outcome in outcomes]
    digest = hashlib.sha256(" ".join(sorted(result.run_id for result in results)).encode()).hexdigest()
    tasks = [task for result in results for task in result.tasks]
    parts = ([result.model for result in results], [result.method for result in results], tasks)
    name = folder_name(*(task_label(dict.fromkeys(part)) for part in parts), digest=digest)
    output = Path(outcomes[0].run.config.output_dir)
    page, newest = output / "pages" / f"{name}.html", output / "report.html"
    write_runs_page(table, page)
    write_atomically(newest, page.read_bytes())
    return newest


# Uploads of trained models to the hub, after the results of a command are stored


def _upload_of(run: Run) -> Upload | None:
    return run.method.upload(run.config, run.facts) if isinstance(run.method, TrainingMethod) else None


def check_uploads(jobs: Sequence[Job]) -> None:
    """Raise ConfigError before any training for uploads that cannot succeed."""
    folders: dict[str, set[object]] = {}
    for run in distinct_runs(jobs):
        if (upload := _upload_of(run)) is not None:
            from moe_lab.models.hub import check_upload

            check_upload(upload, offline=run.config.offline)
            folders.setdefault(upload.repository, set()).add(upload.folder)
            if len(folders[upload.repository]) > 1:
                raise ConfigError(
                    f"method.hub_model_id={upload.repository} is one repository, and this command trains several "
                    "models. Leave it out: each gets the name of its folder."
                )


def push_all(outcomes: Sequence[Outcome], family: Family) -> list[Failure]:
    """Push each trained model once, with the scores of all runs of the command that evaluated it.

    Returns the failed uploads. The results and the trained models are stored in any case.
    """
    by_folder: dict[object, list[Outcome]] = {}
    for outcome in outcomes:
        if (upload := _upload_of(outcome.run)) is not None:
            by_folder.setdefault(upload.folder, []).append(outcome)
    failures = []
    for several in by_folder.values():
        from moe_lab.models.hub import push

        run = several[0].run
        method: Any = run.method
        scores = [family.correct(score) for outcome in several for score in shown_scores(outcome.results)]
        card = partial(method.card, config=run.config, facts=run.facts, scores=scores)
        try:
            print(f"pushed to {push(method.upload(run.config, run.facts), card)}", file=sys.stderr)
        except MoeLabError as error:
            failures.append(Failure(run.folder.name, run.run_id, error))
    return failures
