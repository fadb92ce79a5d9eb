"""Pushing what a command trained to the hub, after its results are stored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.methods.method import TrainingMethod
from moe_lab.results.scores import shown_scores
from moe_lab.runs.attempts import Failure
from moe_lab.runs.jobs import Job, distinct_runs

if TYPE_CHECKING:
    from moe_lab.models.upload import Upload
    from moe_lab.results.score_table import Family
    from moe_lab.runs.run import Outcome, Run


def _upload_of(run: Run) -> Upload | None:
    return run.method.upload(run.config, run.facts) if isinstance(run.method, TrainingMethod) else None


def check_uploads(jobs: Sequence[Job]) -> None:
    """Raise ConfigError for uploads that cannot succeed, before anything is trained."""
    folders: dict[str, set[object]] = {}
    for run in distinct_runs(jobs):
        if (upload := _upload_of(run)) is not None:
            from moe_lab.models.upload import check_upload

            check_upload(upload, offline=run.config.offline)
            folders.setdefault(upload.repository, set()).add(upload.folder)
    for repository, several in folders.items():
        if len(several) > 1:
            raise ConfigError(
                f"method.hub_model_id={repository} is one repository, and this command trains {len(several)} models. "
                "Leave it out: each gets the name of its folder."
            )


def refuse_uploads(jobs: Sequence[Job]) -> None:
    """Raise ConfigError for an experiment whose models are to be pushed."""
    if any(_upload_of(run) is not None for run in distinct_runs(jobs)):
        raise ConfigError(
            "method.push_to_hub=true pushes the models of a command without experiment=. Leave it out, and push one "
            "by its own command."
        )


def push_all(outcomes: Sequence[Outcome], family: Family) -> list[Failure]:
    """Push each trained model once, with the scores of all runs of the command that evaluated it.

    Returns what failed: the results and the trained models are stored.
    """
    by_folder: dict[object, list[Outcome]] = {}
    for outcome in outcomes:
        if (upload := _upload_of(outcome.run)) is not None:
            by_folder.setdefault(upload.folder, []).append(outcome)
    failures = []
    for several in by_folder.values():
        run = several[0].run
        upload = _upload_of(run)
        assert upload is not None and isinstance(run.method, TrainingMethod)
        from moe_lab.models.upload import push

        scores = [family.correct(score) for outcome in several for score in shown_scores(outcome.results)]
        card = partial(run.method.card, config=run.config, facts=run.facts, scores=scores)
        try:
            print(f"pushed to {push(upload, card)}", file=sys.stderr)
        except MoeLabError as error:
            failures.append(Failure(run.folder.name, run.run_id, error))
    return failures
