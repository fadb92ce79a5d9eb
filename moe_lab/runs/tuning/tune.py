"""Runs a study: the missing trials on one loaded model, then the profile, table and figures."""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from optuna.trial import Trial, TrialState

from moe_lab.config.progress import Progress, naming
from moe_lab.config.terminal import print_message
from moe_lab.engine.lm import EngineLM
from moe_lab.methods.profile import Profile
from moe_lab.models.memory import ModelPool
from moe_lab.reports.figures import write_study_figures
from moe_lab.reports.loggers import Logger, open_logger
from moe_lab.results.folder import RunFolder
from moe_lab.runs.execute import memory_errors
from moe_lab.runs.tuning.objective import Accuracy, Perplexity, Pruned, objective
from moe_lab.runs.tuning.optuna_objects import TARGET
from moe_lab.runs.tuning.shared_storage import SharedTrials
from moe_lab.runs.tuning.study import (
    LOGIT_SCALE,
    SCALED,
    UNSCALED,
    Study,
    write_study,
    write_trials,
)
from moe_lab.runs.tuning.trials import Trials, storage_errors


@dataclass(frozen=True)
class Measurement:
    """What a trial measured."""

    value: float | None
    """The study's metric; None: the trial was pruned."""
    attributes: dict[str, float] = field(default_factory=dict)
    """The trial's user attributes."""


def tune(study: Study, models: ModelPool, group: str | None = None) -> Profile:
    """Compute the missing trials of a study. Returns the profile, of a finished study at once.

    The same call after an interruption continues. Several processes may call it at once and share
    the trials. `group` is the logger's; None: the study's name.
    """
    profile = study.profile()
    if profile is not None:
        return profile
    name = study.folder.name
    with (
        RunFolder(study.folder, study.study_id).status(),
        memory_errors(name),
        storage_errors(study.folder, _shared_storage(study)),
        _trials_of(study) as trials,
        open_logger(
            study.config, kind="study", name=name, group=group or name, folder=study.folder
        ) as logger,
    ):
        with trials.lock:
            write_study(study)
        with naming(name):
            _run_trials(study, trials, models, logger)
        with trials.lock:
            write_trials(study, trials)
            figures = write_study_figures(study.folder)
            write_study(study, finished=len(trials.finished()))
        note = tied_note(study, trials)
        if note is not None:
            print_message(f"{name}: {note}")
        logger.log_study(study.folder)
        for figure in figures:
            logger.log_figure(figure)
    profile = study.profile()
    assert profile is not None
    return profile


def _trials_of(study: Study) -> Trials:
    """The trials in the study's folder, or in the storage of `tuning.storage`."""
    config = study.config
    storage = config.tuning.storage
    if storage is None:
        return Trials(study.folder, study.search, config.seed)
    return SharedTrials(study.folder, study.search, config.seed, storage)


def _shared_storage(study: Study) -> str | None:
    """`tuning.storage` as messages name it: the URL, or the class."""
    storage = study.config.tuning.storage
    if isinstance(storage, Mapping):
        return str(storage[TARGET])
    return storage


def tied_note(study: Study, trials: Trials) -> str | None:
    """What is said of a study whose complete trials all have one value; None if they differ."""
    values = {trial.value for trial in trials.finished() if trial.state == TrialState.COMPLETE}
    count = len(trials.finished())
    if len(values) != 1 or count < 2:
        return None
    remedy = "Use more documents: tuning.num_samples=."
    if study.search.metric == "accuracy":
        remedy = "A finer metric: tuning.metric=perplexity. Or more documents: tuning.num_samples=."
    return (
        f"all {count} trials have the {study.search.metric} {values.pop():.5g}, so that the first "
        f"one was chosen. {remedy}"
    )


def _run_trials(study: Study, trials: Trials, models: ModelPool, logger: Logger) -> None:
    """Compute the missing trials, each stored, written to trials.csv and logged when it ends."""
    search = study.search
    timeout = study.config.tuning.timeout
    start = time.monotonic()

    def is_late() -> bool:
        """Whether the time is over. The first trial, with which others are compared, is computed
        in any case."""
        has_first = any(trial.number == 0 for trial in trials.finished())
        return timeout is not None and has_first and time.monotonic() - start >= timeout

    progress = Progress(search.n_trials, "tuning", "trial", initial=len(trials.finished()))
    with ExitStack() as opened, progress:
        open_trial = None
        metric = None
        while not is_late():
            trial = trials.claim()
            if trial is None:
                break
            if open_trial is None:  # without a missing trial no model is loaded
                loaded = models.get(study.config)
                open_trial = opened.enter_context(search.open(loaded, study.config))
            prunes = search.prunes(trial.number)
            by_pruner = prunes and bool(search.pruner)
            limit = trials.worst() if prunes and not by_pruner else None
            with open_trial(trial) as lm:
                if metric is None:
                    metric = objective(study, lm)
                measured = measure(
                    trial, lm, metric, limit, scaled=search.logit_scale, by_pruner=by_pruner
                )
            trials.tell(trial, measured.value, **measured.attributes)
            with trials.lock:
                write_trials(study, trials)
            state = "PRUNED" if measured.value is None else "COMPLETE"
            logger.log_trial(trial.number, measured.value, search.temperatures(trial), state)
            best = trials.best()
            note = None
            if best is not None:
                note = f"best={best.value:.5g} in trial {best.number}"
            progress.at(len(trials.finished()), note)


def measure(
    trial: Trial,
    lm: EngineLM,
    metric: Perplexity | Accuracy,
    limit: float | None,
    *,
    scaled: bool,
    by_pruner: bool = False,
) -> Measurement:
    """The metric of a trial under its LM.

    Its value is None if the trial was pruned. If the LM finds the best logit scale, the attributes
    are this scale (LOGIT_SCALE) and the perplexity at it (SCALED) and without it (UNSCALED).

    Args:
        limit: the value beyond which the trial is pruned; None: it is not pruned.
        scaled: whether the value is the perplexity at the best logit scale.
        by_pruner: whether the study's pruner is asked after every document.
    """

    def report(value: float, documents: int) -> None:
        trial.report(value, documents)
        if by_pruner and trial.should_prune():
            raise Pruned

    try:
        value = metric(lm, limit, report)
    except Pruned:
        return Measurement(None)
    sweep = lm.ensemble.sweep
    if sweep is None:
        return Measurement(value)
    scale, loss = sweep.best()
    perplexity = math.exp(loss)
    attributes = {LOGIT_SCALE: scale, SCALED: perplexity, UNSCALED: value}
    return Measurement(perplexity if scaled else value, attributes)
