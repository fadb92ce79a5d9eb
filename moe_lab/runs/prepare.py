"""A configuration becomes a checked run with its id, before weights load."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.method import DesignMethod, Method, ModelMaker, TrainingMethod
from moe_lab.methods.tunable_method import TunableMethod
from moe_lab.models.facts import ModelFacts
from moe_lab.models.hub import go_offline
from moe_lab.models.source import check_has_weights
from moe_lab.results.identity import run_id
from moe_lab.runs.checks import (
    check_chat_template,
    check_code_execution,
    check_generation,
    check_metric,
    check_router,
    check_votes,
)
from moe_lab.runs.identity import identity, run_name
from moe_lab.runs.model_files import facts_of, tokenizer_of
from moe_lab.runs.run import Run
from moe_lab.tasks.documents import select_documents
from moe_lab.tasks.judges import judges_of
from moe_lab.tasks.loading import load_tasks

OF_METHOD = ("method=", "method.", "tuning=", "tuning.")
"""The first characters of overrides that belong to a method."""
NOT_OF_BASE = (*OF_METHOD, "seed=", "seeds=", "rerun=")
"""The first characters of overrides that the base model's run does not have."""


def prepare(config: Config, facts: ModelFacts | None = None) -> Run:
    """The run of a configuration, after all checks that need no weights.

    Computes nothing, creates no folder.

    Args:
        facts: those of a model that is yet to be trained, whose run is checked; None: those of the
            configuration's model.

    Raises ConfigError for impossible settings, TaskError for tasks and data, ModelError for a model
    that cannot be read, has no tokenizer, or lacks the router that the method needs.
    """
    if config.offline:
        go_offline()
    method = get_method(config.method.name)(config.method)
    if isinstance(method, ModelMaker):
        raise ConfigError(f"method={config.method.name} trains a model and evaluates none.")

    tasks = load_tasks(config)
    check_metric(config, tasks)
    check_code_execution(config, tasks)
    tuned_on = method.tuned_on if isinstance(method, TunableMethod) else frozenset[str]()
    samples = select_documents(config, tasks, tuned_on)
    if facts is None:
        facts = facts_of(config)
        if not isinstance(method, DesignMethod):
            check_has_weights(config.model, offline=config.offline)
    if isinstance(method, TrainingMethod):
        facts = method.trained_facts(config, facts)
    check_router(method, facts)
    if config.metrics == "expert":
        from moe_lab.runs.evaluation.expert import check

        check(method, config, facts, tasks)
    if config.metrics == "confidence":
        from moe_lab.runs.evaluation import confidence

        confidence.check(config, tasks)
    tokenizer_of(config)  # raises the error of a model without one
    method.check(facts)
    check_chat_template(config)
    check_generation(config, facts, tasks)
    check_votes(method, config, tasks)

    run = _identified(config, method, facts, tasks, samples)
    is_compared = not isinstance(method, DesignMethod) and config.method.name != "base"
    if not config.baseline or not is_compared or config.predict_only:
        return run
    return _with_comparisons(run)


def _with_comparisons(run: Run) -> Run:
    """The run with those that it is compared with, on the same documents."""
    baseline = _run_of(_base_config(run.config), run)
    comparisons = {}
    for name, (method, typed_overrides) in run.method.comparisons(_is_greedy(run.tasks)).items():
        compared = _run_of(_with_method(run.config, method, typed_overrides), run)
        comparisons[name] = replace(compared, baseline=baseline)
    return replace(run, baseline=baseline, comparisons=comparisons)


def _run_of(config: Config, run: Run) -> Run:
    """The run of another configuration on the documents of `run`."""
    method = get_method(config.method.name)(config.method)
    return _identified(config, method, run.facts, run.tasks, run.samples)


def _identified(
    config: Config,
    method: Method,
    facts: ModelFacts,
    tasks: TaskDict,
    samples: dict[str, list[int]],
) -> Run:
    """The run with its id."""
    judges = judges_of(config, tasks)
    content = identity(config, method, facts, tasks, samples)
    if judges:
        content["judges"] = [judge.identity for judge in judges]
    digest = run_id(content)
    return Run(
        config=config,
        run_id=digest,
        folder=Path(config.output_dir) / "runs" / run_name(config, digest),
        facts=facts,
        method=method,
        tasks=tasks,
        samples=samples,
        judges=judges,
    )


def _is_greedy(tasks: TaskDict) -> bool:
    """Whether all tasks have generated answers, without sampling."""
    for task in tasks["tasks"].values():
        if task.get_config("output_type") != "generate_until":
            return False
        if (task.get_config("generation_kwargs") or {}).get("do_sample"):
            return False
    return True


def _base_config(config: Config) -> Config:
    """The same configuration with the base model, which has no randomness."""
    overrides = ["method=base"]
    for override in config.overrides:
        if not override.lstrip("+").startswith(NOT_OF_BASE):
            overrides.append(override)
    return replace(
        config,
        method=get_method("base").Config(name="base"),
        seed=0,
        seeds=1,
        rerun=False,
        baseline=False,
        overrides=overrides,
    )


def _with_method(config: Config, method: Any, typed: list[str]) -> Config:
    """The same configuration with another method; `typed` replaces its overrides in the record."""
    keys = {override.partition("=")[0] for override in typed}
    overrides = []
    for override in config.overrides:
        text = override.lstrip("+")
        if "method" in keys:
            is_replaced = text.startswith(OF_METHOD)
        else:
            is_replaced = override.partition("=")[0].lstrip("+") in keys
        if not is_replaced:
            overrides.append(override)
    return replace(config, method=method, rerun=False, overrides=overrides + typed)
