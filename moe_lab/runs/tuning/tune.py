"""Runs a study: the missing trials with the model loaded once, then the profile, table and figures."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from optuna.trial import FrozenTrial, Trial

from moe_lab.config.progress import Progress, naming
from moe_lab.engine.forward.ensemble import ScaleSweep
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.methods.method import Context, StudyStart
from moe_lab.methods.profile import Profile
from moe_lab.models.facts import LoadedModel
from moe_lab.models.memory import ModelPool
from moe_lab.models.tokenizer import dated
from moe_lab.reports.figures import write_study_figures
from moe_lab.reports.loggers import Logger, open_logger
from moe_lab.results.atomic import write_atomically, write_json
from moe_lab.results.folder import RunFolder
from moe_lab.results.task_scores import reported
from moe_lab.runs.evaluation.run_lm_eval import evaluate_tasks
from moe_lab.runs.execute import memory_errors
from moe_lab.runs.tuning.study import TABLE, Study
from moe_lab.runs.tuning.trials import Trials, storage_errors
from moe_lab.tasks.metric_errors import check_scores
from moe_lab.tasks.requests import build_requests, right_request

LOGIT_SCALE, SCALED, UNSCALED = "logit_scale", "scaled", "unscaled"
"""User attributes of a trial: its best logit scale, and its perplexity there and at scale 1. Without
tuning.logit_scale the trial at temperature 0 alone has them: they are the control for a gain in perplexity."""

Measured = tuple[float | None, dict[str, float]]
"""The value of a trial, and its user attributes."""


def tune(study: Study, models: ModelPool, group: str | None = None) -> Profile:
    """Compute the missing trials of a study. Returns the profile, of a finished study at once.

    The same call after an interruption continues. Several processes may call it at once and share the trials. `group`
    is the logger's; None: the study's name.
    """
    if (profile := study.profile()) is not None:
        return profile
    name = study.folder.name
    with (
        RunFolder(study.folder, study.study_id).status(),
        memory_errors(name),
        storage_errors(study.folder),
        Trials(study.folder, study.search, study.config.seed) as trials,
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
        logger.log_study(study.folder)
        for figure in figures:
            logger.log_figure(figure)
    profile = study.profile()
    assert profile is not None
    return profile


def _run_trials(study: Study, trials: Trials, models: ModelPool, logger: Logger) -> None:
    measure: Measurement | None = None
    progress = Progress(study.search.n_trials, "tuning", "trial", initial=len(trials.finished()))
    with ExitStack() as opened, progress:
        while (claimed := trials.claim()) is not None:
            if measure is None:
                measure = Measurement(study, models.get(study.config), opened)
            trial, temperatures = claimed
            value, measured = measure(trial, temperatures, _limit(study, trial, trials))
            trials.tell(trial, value, **measured)
            with trials.lock:
                write_trials(study, trials)
            logger.log_trial(
                trial.number, value, temperatures, "PRUNED" if value is None else "COMPLETE"
            )
            best = trials.best()
            progress.at(
                len(trials.finished()), best and f"best={best.value:.5g} in trial {best.number}"
            )


class Measurement:
    """Measures the trials of a study on a model in memory.

    Trials of temperatures share one LM, whose ensemble changes. Each trial of settings opens the method with its own.
    """

    def __init__(self, study: Study, loaded: LoadedModel, opened: ExitStack):
        self.study, self.loaded = study, loaded
        self.lm: EngineLM | None = None
        self.objective: Any = None
        if study.search.grid is None:
            first = _ensemble(study, [0.0] * study.search.moe_layers)
            start = StudyStart(first=first, reuse=study.search.given is None)
            context = Context(config=study.config, study=start)
            self.lm = opened.enter_context(study.method.open(loaded, context))

    def __call__(self, trial: Trial, temperatures: list[float], limit: float | None) -> Measured:
        """The value (None: pruned) and the user attributes of a trial, which is pruned beyond `limit`."""
        with ExitStack() as own:
            if self.lm is None:
                lm, sweep = self._open_settings(trial, own)
            else:
                lm, ensemble = self.lm, _ensemble(self.study, temperatures)
                lm.set_ensemble(ensemble)
                sweep = ensemble.sweep
            if self.objective is None:
                if template := self.study.config.apply_chat_template:
                    lm.tokenizer.chat_template = dated(lm.chat_template(template))
                self.objective = objective(self.study, lm)
            self.objective.lm = lm
            try:
                value = self.objective(limit, trial.report)
            except Pruned:
                return None, {}
        if sweep is None:
            return value, {}
        scale, loss = sweep.best()
        found = {LOGIT_SCALE: scale, SCALED: math.exp(loss), UNSCALED: value}
        return found[SCALED] if self.study.search.logit_scale else value, found

    def _open_settings(self, trial: Trial, own: ExitStack) -> tuple[EngineLM, ScaleSweep | None]:
        study, method = self.study, cast(Any, self.study.method)
        config = replace(study.config, method=method.at(_settings(study, trial)))
        lm = own.enter_context(
            type(method)(config.method).open(self.loaded, Context(config=config))
        )
        lm.progress = False
        base = trial.number == 0 and method.begins_with_base and study.search.metric == "perplexity"
        if not base or lm.engine is None:
            return lm, None
        sweep = ScaleSweep()  # finds the base model's best logit scale
        lm.set_ensemble(replace(lm.ensemble, sweep=sweep))
        return lm, sweep


def _settings(study: Study, trial: Trial | FrozenTrial) -> dict[str, float]:
    """The settings of a trial as the search has them, numbers of experts as integers, or as they were sampled."""
    return study.search.fixed(trial.number) or trial.params


def _ensemble(study: Study, temperatures: list[float]) -> Any:
    """The ensemble of a trial, with a `ScaleSweep` where the trial's best logit scale is found.

    `tuning.logit_scale=true` finds it in every trial, another study of perplexity at temperature 0 alone (the control).
    """
    search, method = study.search, cast(Any, study.method)
    ensemble = method.ensemble(temperatures, search.skip_layers, study.config.seed)
    sweeps = search.logit_scale or (search.metric == "perplexity" and not any(temperatures))
    return replace(ensemble, sweep=ScaleSweep()) if sweeps else ensemble


def _limit(study: Study, trial: Trial, trials: Trials) -> float | None:
    """The value beyond which a trial is pruned; None for trials that are never pruned.

    Never pruned: the untuned model, the steps of tuning=uniform (points of a curve), and trials that search a logit
    scale, whose perplexity is known only at the end.
    """
    bounded = study.search.tuning in ("tpe", "random") and not study.search.logit_scale
    return trials.worst() if trial.number and bounded else None


OF_SEARCH = (
    *("tuning", "metric", "direction", "n_trials"),
    *("skip_layers", "max_temperature", "logit_scale", "moe_layers"),
)


def write_study(study: Study, finished: int | None = None) -> None:
    """Write study.json: the search and its documents; at its end the number of `finished` trials."""
    search, config = study.search, study.config
    content = {
        "study_id": study.study_id,
        "model": study.facts.name,
        "family": study.facts.family,
        "task": study.task.task_name,
        **{name: getattr(search, name) for name in OF_SEARCH},
        "n": getattr(config.method, "n", 1),
        "cache": getattr(config.method, "cache", "clean"),
        "seed": config.seed,
        "split": study.split,
        "samples": study.samples,
        "num_samples": sum(map(len, study.samples.values())),
        "text": _answers(study),
        "finished": finished,
    }
    write_json(study.folder / "study.json", content)


def _answers(study: Study) -> str | None:
    """The scored answers, which others wrote; None if accuracy is tuned."""
    return "data" if study.search.metric == "perplexity" else None


def write_trials(study: Study, trials: Trials) -> None:
    """Write trials.csv (Optuna's columns) and, after trial 0, best.yaml of the finished trials."""
    table = trials.study.trials_dataframe().rename(
        columns={f"value_{study.search.metric}": "value"}
    )
    write_atomically(study.folder / TABLE, table.to_csv(index=False))
    finished, best = trials.finished(), trials.best()
    untuned = next((trial for trial in finished if trial.number == 0), None)
    if best is None or best.value is None or untuned is None or untuned.value is None:
        return
    scale = float(best.user_attrs[LOGIT_SCALE]) if study.search.logit_scale else 1.0
    at_zero = not any(study.search.temperatures(untuned.params))  # unless temperatures were given
    method: Any = study.config.method
    profile = Profile(
        model=study.facts.name,
        task=study.task.task_name,
        study=study.folder.name,
        tuning=study.search.tuning,
        metric=study.search.metric,
        n=getattr(method, "n", 1),
        noise=getattr(method, "noise", "gumbel"),
        trials=len(finished),
        trial=best.number,
        score=float(best.value),
        untuned_score=float(untuned.user_attrs.get(UNSCALED, untuned.value)),
        logit_scale=scale,
        calibrated_score=untuned.user_attrs.get(SCALED) if at_zero else None,
        calibrated_scale=untuned.user_attrs.get(LOGIT_SCALE) if at_zero else None,
        at_bound=study.search.at_bound(best.params, scale),
        split=study.split,
        samples=study.samples,
        documents=study.documents,
        answers=_answers(study),
        temperature=study.search.temperatures(best.params),
        settings=cast(Any, study.method).settings(_settings(study, best))
        if study.search.grid
        else None,
    )
    write_atomically(study.folder / "best.yaml", profile.text())


# The objective of a trial on the tuning documents: perplexity of their answers, or accuracy (RoE, section 2.2.1)
#
# Work that no temperature changes is done once: prompts and tokens here, forward passes without noise in the engine.

Report = Callable[[float, int], None]
"""(perplexity of the requests scored so far, their number)"""


class Pruned(Exception):
    """The trial is certain to be the worst so far."""


class Perplexity:
    """exp of the mean negative log-likelihood per token of the reference answers, given their prompts."""

    def __init__(self, study: Study, lm: EngineLM):
        rolling = study.task.get_config("output_type") == "loglikelihood_rolling"
        self.kind = "loglikelihood_rolling" if rolling else "loglikelihood"
        self.lm = lm
        groups = build_requests(study.config, study.task, lm)  # of each document
        right = [right_request(study.config, study.task, group) for group in groups]
        self.requests = [Request(request) for request in right]
        self.tokens = [lm.count_tokens(self.kind, request) for request in self.requests]

    def __call__(self, worst: float | None, report: Report) -> float:
        """The perplexity under the LM's current ensemble. Raises Pruned once it must exceed `worst`.

        That is certain as soon as the answers scored so far have a larger negative log-likelihood than all answers in
        the worst trial, since the others can only add to it. Pruning therefore loses no better trial, and the sampler,
        which ranks pruned trials after complete ones, ranks it like its perplexity.
        """
        limit = math.inf if worst is None else math.log(worst) * sum(self.tokens)
        nll, scored, tokens = 0.0, 0, 0

        def on_answer(index: int, answer: Any) -> None:
            nonlocal nll, scored, tokens
            nll -= answer[0] if isinstance(answer, tuple) else answer
            scored, tokens = scored + 1, tokens + self.tokens[index]
            if nll > limit and scored < len(self.requests):
                report(math.exp(nll / tokens), scored)
                raise Pruned

        self.lm.answer(self.kind, self.requests, on_answer)
        return math.exp(nll / tokens)


class Accuracy:
    """The task's headline metric by lm-eval's own evaluation."""

    def __init__(self, study: Study, lm: EngineLM):
        self.study, self.lm = study, lm
        self.metric: str | None = study.config.task.metric
        build_requests(study.config, study.task, lm)
        study.task.build_all_requests = self._reset_answers

    def _reset_answers(self, **_: Any) -> None:
        """Replaces lm-eval's building of prompts: keeps the prompts and drops their earlier answers."""
        for instance in self.study.task.instances:
            instance.resps, instance.filtered_resps = [], {}

    def __call__(self, worst: float | None, report: Report) -> float:
        """The metric under the LM's current ensemble. It never prunes."""
        name = self.study.task.task_name
        evaluated = evaluate_tasks(self.study.config, self.study.tasks, self.lm, None)
        scores = evaluated["results"][name]
        metric = self.metric or next(iter(reported(scores)))
        check_scores([failure for failure in evaluated["failures"] if failure.metric == metric])
        return float(scores[metric])


def objective(study: Study, lm: EngineLM) -> Perplexity | Accuracy:
    """The study's metric over its tuning documents."""
    return Accuracy(study, lm) if study.search.metric == "accuracy" else Perplexity(study, lm)
