"""Uploads of trained models to the hub, after the results of a command are stored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.methods.method import TrainingMethod
from moe_lab.results.score_table import Family
from moe_lab.results.scores import shown_scores
from moe_lab.runs.attempts import Failure
from moe_lab.runs.jobs import Job, distinct_runs

if TYPE_CHECKING:
    from moe_lab.models.hub import Upload
    from moe_lab.runs.run import Outcome, Run


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
