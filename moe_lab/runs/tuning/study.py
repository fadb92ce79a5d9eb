"""A study of temperatures or settings, and the files of its folder next to Optuna's storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config, TuningConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.profile import Profile, read_profile
from moe_lab.models.facts import ModelFacts
from moe_lab.results.atomic import write_atomically, write_json
from moe_lab.results.stored_files import whole_mapping
from moe_lab.runs.tuning.search import Search, TrialPoint

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from moe_lab.runs.tuning.trials import Trials

TABLE = "trials.csv"
"""Written from the storage after every trial."""
LOGIT_SCALE, SCALED, UNSCALED = "logit_scale", "scaled", "unscaled"
"""User attributes of a trial: its best logit scale, and its perplexity there and at scale 1.

Without tuning.logit_scale the trial at temperature 0 alone has them: they are the control for a
gain in perplexity."""
EXPECTED_SCALE = 0.9
"""A logit scale that is yet to be found; 1 would be the base model's."""


@dataclass(frozen=True)
class ExpectedTrial:
    """The best trial of a study that is yet to be finished."""

    params: dict[str, float]
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Study:
    """A search over temperatures or settings, before anything is computed."""

    config: Config
    """With the preset's n and the task of the tuning documents.

    Its temperature, or the settings of a grid, are placeholders."""
    evaluated: Config
    """The configuration that is evaluated with the profile.

    Where GSM8K is tuned for another task, it has that task.
    """
    search: Search
    study_id: str
    """SHA-256 of everything that determines the trials.

    Without their number, so that more trials continue a study.
    """
    folder: Path
    facts: ModelFacts
    tasks: TaskDict
    """The task over its tuning documents."""
    split: str
    """The split of the tuning documents."""
    samples: dict[str, list[int]]
    """The row numbers of the tuning documents in that split."""
    documents: list[str]
    """`document_hashes` of the tuning documents."""

    @property
    def method(self) -> Any:
        """The method that is tuned, with placeholders for what is searched."""
        return self.search.method

    @property
    def task(self) -> Any:
        """lm-eval's task over the tuning documents."""
        return next(iter(self.tasks["tasks"].values()))

    def finished(self) -> int:
        """The number of finished trials, as trials.csv has it; 0 without one that can be read."""
        try:
            states = pd.read_csv(self.folder / TABLE)["state"]
        except (OSError, ValueError, KeyError):
            return 0
        return int(states.isin(["COMPLETE", "PRUNED"]).sum())

    def profile(self) -> Profile | None:
        """The temperature profile; None before the study and its figures are finished."""
        content = whole_mapping(self.folder / "study.json") or {}
        finished = content.get("finished")
        if not isinstance(finished, int):
            return None
        if finished < self.search.n_trials and not self._is_out_of_time(content):
            return None
        try:
            return read_profile(self.best)
        except ConfigError:
            return None  # absent or damaged; it is written again from the storage

    def _is_out_of_time(self, content: Mapping[str, Any]) -> bool:
        """Whether the study of study.json ended after as many seconds as it has now."""
        earlier = content.get("timeout")
        timeout = self.config.tuning.timeout
        return earlier is not None and timeout is not None and earlier >= timeout

    @property
    def best(self) -> Path:
        """The file of the profile."""
        return self.folder / "best.yaml"

    def expected_profile(self) -> Profile:
        """The profile of an unfinished study, with placeholders for what it will find.

        Its documents are right, and it has a logit scale of the base model if the study finds one.
        """
        search = self.search
        return self.profile_of(
            ExpectedTrial(params=dict.fromkeys(search.bounds, 1.0)),
            trials=search.n_trials,
            score=1.0,
            untuned_score=1.0,
            logit_scale=EXPECTED_SCALE if search.logit_scale else 1.0,
            calibrated_scale=EXPECTED_SCALE if search.calibrates else None,
        )

    def profile_of(self, best: TrialPoint, **scores: Any) -> Profile:
        """The study's profile: the values of its best trial, and `scores`, the other fields of a
        `Profile`."""
        method = self.config.method
        return Profile(
            model=self.facts.name,
            task=self.task.task_name,
            study=self.folder.name,
            tuning=self.search.label,
            metric=self.search.metric,
            n=getattr(method, "n", 1) or 1,
            noise=getattr(method, "noise", "gumbel"),
            trial=best.number,
            split=self.split,
            samples=self.samples,
            documents=self.documents,
            temperature=self.search.temperatures(best),
            settings=self.search.method_settings(best),
            **scores,
        )

    def tuned_config(self) -> Config:
        """The configuration of the evaluation with the profile's path as temperature."""
        tuned = self.method.with_profile(str(self.best))
        seeds = 1 if self.config.num_studies > 1 else self.config.num_seeds
        return replace(self.evaluated, method=tuned, tuning=TuningConfig(), seeds=seeds)


def write_study(study: Study, finished: int | None = None) -> None:
    """Write study.json: the search, its documents, and at the end the number of finished trials."""
    search = study.search
    settings = search.all_settings
    method = study.config.method
    content = {
        "study_id": study.study_id,
        "model": study.facts.name,
        "family": study.facts.family,
        "task": study.task.task_name,
        "tuning": search.label,
        "metric": search.metric,
        "direction": search.direction,
        "n_trials": search.n_trials,
        "skip_layers": settings["skip_layers"],
        "max_temperature": settings["max_temperature"],
        "logit_scale": search.logit_scale,
        "moe_layers": search.moe_layers,
        "n": getattr(method, "n", 1) or 1,
        "cache": getattr(method, "cache", "clean") or "clean",
        "seed": study.config.seed,
        "split": study.split,
        "samples": study.samples,
        "num_samples": sum(map(len, study.samples.values())),
        "text": _answers(study),
        "finished": finished,
        "timeout": study.config.tuning.timeout,
    }
    write_json(study.folder / "study.json", content)


def write_trials(study: Study, trials: Trials) -> None:
    """Write trials.csv (Optuna's columns) and, after trial 0, best.yaml of the finished trials."""
    table = trials.study.trials_dataframe()
    table = table.rename(columns={f"value_{study.search.metric}": "value"})
    write_atomically(study.folder / TABLE, table.to_csv(index=False))
    profile = _profile(study, trials.finished(), trials.best())
    if profile is not None:
        write_atomically(study.best, profile.text())


def _profile(study: Study, finished: list[FrozenTrial], best: FrozenTrial | None) -> Profile | None:
    """The profile of the finished trials; None before the untuned trial 0 and a best one."""
    search = study.search
    untuned = next((trial for trial in finished if trial.number == 0), None)
    if best is None or best.value is None or untuned is None or untuned.value is None:
        return None
    control = untuned.user_attrs if search.calibrates else {}
    scale = float(best.user_attrs[LOGIT_SCALE]) if search.logit_scale else 1.0
    return study.profile_of(
        best,
        trials=len(finished),
        score=float(best.value),
        untuned_score=float(untuned.user_attrs.get(UNSCALED, untuned.value)),
        logit_scale=scale,
        calibrated_score=control.get(SCALED),
        calibrated_scale=control.get(LOGIT_SCALE),
        at_bound=search.at_bound(best.params, scale),
        answers=_answers(study),
    )


def _answers(study: Study) -> str | None:
    """The scored answers, which others wrote; None if accuracy is tuned."""
    return "data" if study.search.metric == "perplexity" else None
