"""Prepares a study: its search and documents, checked and identified without weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config, TuningConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.tunable_method import GridMethod, TunableMethod
from moe_lab.models.facts import ModelFacts
from moe_lab.results.identity import run_id
from moe_lab.results.names import folder_name, task_label
from moe_lab.runs.checks import check_router
from moe_lab.runs.identity import identity
from moe_lab.runs.model_files import facts_of
from moe_lab.runs.prepare import prepare
from moe_lab.runs.tuning.logit_scale import logit_scale_search
from moe_lab.runs.tuning.method_settings import settings_search
from moe_lab.runs.tuning.optuna_objects import check_objects
from moe_lab.runs.tuning.search import Search
from moe_lab.runs.tuning.shared_storage import check_storage
from moe_lab.runs.tuning.study import Study
from moe_lab.runs.tuning.temperatures import temperature_search
from moe_lab.runs.tuning.worked_answers import has_bare_answers, on_gsm8k
from moe_lab.tasks.document_hashes import document_hashes
from moe_lab.tasks.documents import select_documents
from moe_lab.tasks.holdout import Holdout
from moe_lab.tasks.lm_eval_versions.documents import evaluated_documents
from moe_lab.tasks.loading import load_tasks


def prepare_study(config: Config, trained: ModelFacts | None = None) -> Study:
    """The study of a configuration.

    Checks it and the following evaluation without weights. Creates no folder.

    Args:
        trained: the facts of a model that is yet to be trained, as in
            `moe_lab.runs.prepare.prepare`.

    Raises the errors of `moe_lab.runs.prepare.prepare`, and ConfigError for an impossible search.
    """
    _check_tuning(config)
    facts = trained or facts_of(config)
    search = _with_objects(search_of(config, facts), config)
    config = replace(config, method=search.method.config)
    evaluation = prepare(replace(config, tuning=TuningConfig(), baseline=False), trained)
    holdout = Holdout(num_samples=search.num_samples, seed=config.sample_seed)
    tasks = load_tasks(config, holdout)
    tuned = _tuned_task(tasks, search)
    if search.metric == "accuracy":
        search = replace(search, lower_is_better=is_lower_better(tuned.task, config.task.metric))
    evaluated = config
    if search.metric == "perplexity" and has_bare_answers(tuned.task):
        config, tasks = on_gsm8k(config, holdout)
        tuned = _only_task(tasks)

    documents = sorted(frozenset[str]().union(*document_hashes(tuned.task)))
    # raises the error of a test set of which nothing is left without the tuning documents
    select_documents(evaluated, evaluation.tasks, frozenset(documents))
    dataset = tuned.task.config.custom_dataset
    samples = {tuned.name: dataset.numbers}
    digest = _study_id(config, search, facts, tasks, samples)
    folder = folder_name(config.model.name, task_label(tuned.name), search.metric, digest=digest)
    return Study(
        config=config,
        evaluated=evaluated,
        search=search,
        study_id=digest,
        folder=Path(config.output_dir, "studies", folder),
        facts=facts,
        tasks=tasks,
        split=dataset.source,
        samples=samples,
        documents=documents,
    )


def _check_tuning(config: Config) -> None:
    """Raise ConfigError if `tuning=` has nothing to search in the method, or nothing to measure."""
    method_class = get_method(config.method.name)
    tunings = method_class.tunings if issubclass(method_class, TunableMethod) else ()
    if config.tuning.name not in tunings:
        raise ConfigError(
            f"tuning={config.tuning.name} has nothing to search in method={config.method.name}. "
            f"Use tuning={' or '.join([*tunings, 'none'])}."
        )
    if config.predict_only:
        raise ConfigError(
            f"predict_only computes no metric: leave it or tuning={config.tuning.name} out."
        )


def _study_id(
    config: Config,
    search: Search,
    facts: ModelFacts,
    tasks: TaskDict,
    samples: dict[str, list[int]],
) -> str:
    """SHA-256 of everything that determines the trials (`Study.study_id`).

    Args:
        tasks: the task over its tuning documents.
        samples: the row numbers of the tuning documents in their split.
    """
    [(name, task)] = tasks["tasks"].items()
    numbers_in_task = {name: list(range(len(evaluated_documents(task))))}
    content = identity(config, search.method, facts, tasks, samples, numbers_in_task)
    headline = config.task.metric if search.metric == "accuracy" else None
    content["search"] = search.identity | {"headline": headline}
    if facts.commit is not None:  # trials of another state of the model are another study
        content["commit"] = facts.commit
    return run_id(content)


class TunedTask(NamedTuple):
    """The task that is tuned."""

    name: str
    task: Any
    """lm-eval's task over the tuning documents."""


def _only_task(tasks: TaskDict) -> TunedTask:
    """The task of a dictionary with one task."""
    [(name, task)] = tasks["tasks"].items()
    return TunedTask(name, task)


def _tuned_task(tasks: TaskDict, search: Search) -> TunedTask:
    """The tuned task. Raises ConfigError for several tasks, or one without the search's metric."""
    if len(tasks["tasks"]) > 1:
        raise ConfigError(
            f"A study tunes on one task, not on {', '.join(tasks['tasks'])}. "
            "Tune each: -m task=<one>,<other>."
        )
    tuned = _only_task(tasks)
    name, task = tuned
    if search.metric == "accuracy" and task.get_config("output_type") == "loglikelihood_rolling":
        raise ConfigError(f"{name} has no accuracy: tuning.metric=perplexity.")
    if search.metric == "perplexity" and task.get_config("unsafe_code"):
        raise ConfigError(f"{name} has no reference answers to score: tuning.metric=accuracy.")
    return tuned


def search_of(config: Config, facts: ModelFacts) -> Search:
    """The search of `config.tuning`. Raises ConfigError for settings that contradict it."""
    method_class = get_method(config.method.name)
    if config.tuning.name == "scale":
        return logit_scale_search(config, facts)
    if not facts.moe_layers:
        check_router(method_class(config.method), facts)
    if issubclass(method_class, GridMethod):
        return settings_search(config, facts)
    return temperature_search(config, facts)


def _with_objects(search: Search, config: Config) -> Search:
    """The search with the sampler and the pruner of `config.tuning`, which are tried.

    Raises ConfigError for one that cannot run or has no effect, and for a storage that cannot be
    used.
    """
    tuning = config.tuning
    if tuning.storage is not None:
        check_storage(tuning.storage, config.config_dirs)
    search = replace(search, class_folders=config.config_dirs)
    if not tuning.sampler and not tuning.pruner:
        return search
    if tuning.pruner and (search.metric != "perplexity" or search.logit_scale):
        raise ConfigError(
            "tuning.pruner has no effect: a trial has values before its end only with "
            "tuning.metric=perplexity, without tuning.logit_scale."
        )
    check_objects(tuning.sampler, tuning.pruner, config.config_dirs, search.bounds)
    return replace(search, sampler=tuning.sampler, pruner=tuning.pruner)


def is_lower_better(task: Any, metric: str | None) -> bool:
    """Whether lower values of a task's headline are better.

    Args:
        metric: lm-eval's `metric,filter`; None: the first one of the task.
    """
    directions = task.higher_is_better()
    name = metric.partition(",")[0] if metric else next(iter(directions), None)
    return directions.get(name) is False
