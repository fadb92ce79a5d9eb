"""The page of a command's results, and its summaries over seeds."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from moe_lab.config.terminal import print_message
from moe_lab.reports.pages.runs_page import write_runs_page
from moe_lab.reports.scores import CommandTable
from moe_lab.results.atomic import write_atomically
from moe_lab.results.folder import why_not_writable
from moe_lab.results.names import folder_name, task_label
from moe_lab.runs.outcomes import command_table
from moe_lab.runs.results import Results
from moe_lab.runs.run import Outcome
from moe_lab.runs.summaries import write_summaries


def with_page(finished: Results) -> Results:
    """The same results, at least one, with their table and files: summaries over seeds, page,
    results.

    If the output folder cannot be written, there are no summaries and no page, and a message says
    so.
    """
    table = command_table(finished.outcomes, finished.jobs)
    results_files = [outcome.path for outcome in finished.outcomes]
    reason = why_not_writable(finished.outcomes[0].run.config.output_dir)
    if reason is not None:
        print_message(f"{reason}: no page is written.")
        return replace(finished, table=table, files=results_files)
    write_summaries(table.groups)
    page = write_report(finished.outcomes, table)
    summaries = [group.file for group in table.groups if group.file is not None]
    return replace(finished, table=table, files=[*summaries, page, *results_files])


def write_report(outcomes: Sequence[Outcome], table: CommandTable) -> Path:
    """Write the page of a grid, and `report.html`, a copy of it. Returns the path of the copy.

    The page is `<models>-<methods>-<tasks>-<id8>.html`, where the id is the SHA-256 of the run ids:
    the same runs have the same page, whatever their order.
    """
    results = [outcome.results for outcome in outcomes]
    run_ids = sorted(result.run_id for result in results)
    digest = hashlib.sha256(" ".join(run_ids).encode()).hexdigest()
    models = [result.model.name for result in results]
    methods = [result.method.name for result in results]
    tasks: list[str] = []
    for result in results:
        tasks += result.task.tasks
    labels = [task_label(dict.fromkeys(names)) for names in (models, methods, tasks)]
    name = folder_name(*labels, digest=digest)
    output = Path(outcomes[0].run.config.output_dir)
    page = output / "pages" / f"{name}.html"
    newest = output / "report.html"
    write_runs_page(table, page)
    write_atomically(newest, page.read_bytes())
    return newest
