"""A configuration becomes a checked run with its id, before weights load."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config
from moe_lab.config.validators import (
    NonNegativeFloat,
    NonNegativeInt,
    Share,
    build,
    check_limits,
    did_you_mean,
)
from moe_lab.errors import ConfigError, ModelError, TaskError
from moe_lab.methods import get_method
from moe_lab.methods.method import DesignMethod, Method, ModelMaker, TrainingMethod
from moe_lab.methods.tunable_method import TunableMethod
from moe_lab.models.facts import ModelFacts, model_facts
from moe_lab.models.hub import go_offline
from moe_lab.models.identity import model_identity
from moe_lab.models.new_text import depends_on_context
from moe_lab.models.source import check_has_weights, model_source
from moe_lab.models.tokenizer import load_tokenizer, prompt_tokenizer
from moe_lab.results.identity import HASHED, group_settings, run_id, task_settings
from moe_lab.results.names import folder_name, task_label
from moe_lab.routing.hook import fixed_message, no_router_message
from moe_lab.runs.run import Run
from moe_lab.tasks.document_hashes import documents_digest
from moe_lab.tasks.documents import select_documents
from moe_lab.tasks.judges import judges_of
from moe_lab.tasks.lm_eval_versions.documents import executes_code
from moe_lab.tasks.lm_eval_versions.metrics import output_filters
from moe_lab.tasks.loading import MAX_NEW_TOKENS, load_tasks, once
from moe_lab.tasks.sandbox.programs import Limits, check_sandbox, check_user_limits

# The content of a run's id: everything that determines the numbers, and nothing else


def identity(
    config: Config,
    method: Method,
    facts: ModelFacts,
    tasks: TaskDict,
    samples: dict[str, list[int]],
    documents: dict[str, list[int]] | None = None,
) -> dict[str, Any]:
    """The content that is hashed to a run's id, as plain values.

    `samples` are document numbers per task. `documents` are the same documents as numbers in `task_docs`; None if both
    agree.
    """
    determines = replace(config, overrides=[], rerun=False)
    data = once(
        f"data {determines} {method.config} {facts}", lambda: method.data_identity(config, facts)
    )
    model = model_identity(model_source(config.model), config.model)
    if facts.rope_by_length:
        # results from before each text had its own embeddings are of another run
        model = model | {"rotary": "of each text"}
    if _generates(tasks) and depends_on_context(_tokenizer(config)):
        # results from before answers kept the blank at their beginning are of another run
        model = model | {"answers": "decoded in context"}
    return {
        "model": model,
        "dtype": facts.dtype,
        "method": {"config": method.identity(facts), "numerics": method.version}
        | ({"reads": data} if data else {}),
        "tasks": {name: task_settings(task) for name, task in tasks["tasks"].items()},
        "groups": {name: group_settings(group) for name, group in tasks.get("groups", {}).items()},
        "settings": {name: getattr(config, name) for name in sorted(HASHED)},
        "samples": samples,
        "documents": documents_digest(tasks, documents or samples),
        "seed": config.seed if method.random else None,
    }


def _generates(tasks: TaskDict) -> bool:
    return any(
        task.get_config("output_type") == "generate_until" for task in tasks["tasks"].values()
    )


def _tokenizer(config: Config) -> Any:
    """The tokenizer of a configuration's model, read once in a command."""
    return once(
        f"tokenizer {config.model} {config.offline}",
        lambda: load_tokenizer(config.model, offline=config.offline),
    )


def run_name(config: Config, digest: str) -> str:
    """`<model>-<method>-<task>-<id8>`: the name of a run's folder."""
    return folder_name(
        config.model.name, config.method.name, task_label(config.task.name), digest=digest
    )


OF_METHOD = ("method=", "method.", "tuning=", "tuning.")
"""The first characters of overrides that belong to a method."""


def prepare(config: Config, facts: ModelFacts | None = None) -> Run:
    """The run of a configuration, after all checks that need no weights. Computes nothing, creates no folder.

    `facts`: checks the run of a model with these facts, which is yet to be trained; None: those of the model.

    Raises ConfigError for impossible settings, TaskError for tasks and data, ModelError for a model that cannot be
    read, has no tokenizer, or lacks the router that the method needs.
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
    _tokenizer(config)
    method.check(facts)
    check_chat_template(config)
    check_generation(config, facts, tasks)
    check_votes(method, config, tasks)
    run = _identified(config, method, facts, tasks, samples)
    compared = not isinstance(method, DesignMethod) and config.method.name != "base"
    if not config.baseline or not compared or config.predict_only:
        return run

    def run_of(other: Config) -> Run:
        return _identified(
            other, get_method(other.method.name)(other.method), facts, tasks, samples
        )

    greedy = all(
        task.get_config("output_type") == "generate_until"
        and not (task.get_config("generation_kwargs") or {}).get("do_sample")
        for task in tasks["tasks"].values()
    )
    others = (*OF_METHOD, "seed=", "seeds=", "rerun=")
    kept = [
        override for override in config.overrides if not override.lstrip("+").startswith(others)
    ]
    untouched: dict[str, Any] = {
        "seed": 0,
        "seeds": 1,
        "rerun": False,
        "baseline": False,
        "overrides": ["method=base", *kept],
    }
    baseline = run_of(replace(config, method=get_method("base").Config(name="base"), **untouched))
    comparisons = {
        name: replace(run_of(_with_method(config, other, typed)), baseline=baseline)
        for name, (other, typed) in method.comparisons(greedy).items()
    }
    return replace(run, baseline=baseline, comparisons=comparisons)


def facts_of(config: Config) -> ModelFacts:
    """The facts of a configuration's model, read once in a command. Raises ModelError."""
    where: dict[str, Any] = {
        "dtype": config.dtype,
        "device": config.device,
        "offline": config.offline,
    }
    return once(f"facts {config.model} {where}", lambda: model_facts(config.model, **where))


def _identified(
    config: Config,
    method: Method,
    facts: ModelFacts,
    tasks: TaskDict,
    samples: dict[str, list[int]],
) -> Run:
    judges = judges_of(config, tasks)
    judged = {"judges": [judge.identity for judge in judges]} if judges else {}
    digest = run_id(identity(config, method, facts, tasks, samples) | judged)
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


def _with_method(config: Config, method: Any, typed: list[str]) -> Config:
    """The same configuration with another method; `typed` replaces its overrides in the record."""
    keys = {override.partition("=")[0] for override in typed}
    if "method" in keys:
        kept = [one for one in config.overrides if not one.lstrip("+").startswith(OF_METHOD)]
    else:
        kept = [one for one in config.overrides if one.partition("=")[0].lstrip("+") not in keys]
    return replace(config, method=method, rerun=False, overrides=[*kept, *typed])


# Checks of a run's settings against its method, model and tasks


def check_router(method: Method, facts: ModelFacts) -> None:
    """Raise ModelError if the method needs a router and the model has none, or none for single tokens."""
    if method.required_routing == "none":
        return
    if method.required_routing == "tokens" and facts.fixed_routing:
        raise ModelError(fixed_message(facts.path or facts.name, facts.fixed_routing))
    if not facts.moe_layers:
        raise ModelError(
            no_router_message(
                f"{facts.path or facts.name} (model type {facts.family})", facts.family
            )
        )


def check_chat_template(config: Config) -> None:
    """Raise ConfigError for a chat template that the tokenizer does not have."""
    template = config.apply_chat_template
    if not template:
        return
    templates = prompt_tokenizer(config).chat_template
    names = list(templates) if isinstance(templates, dict) else []
    if not templates or (isinstance(template, str) and template not in names):
        unnamed = "one without a name (use true)" if templates else "no chat template"
        raise ConfigError(
            f"apply_chat_template={template}: the tokenizer has {', '.join(names) or unnamed}."
        )


@dataclass(kw_only=True)
class Generation:
    """The supported keys of `gen_kwargs`."""

    until: str | list[str] = field(default_factory=list)
    max_gen_toks: NonNegativeInt = 1
    max_new_tokens: NonNegativeInt = 1
    max_tokens: NonNegativeInt = 1
    max_completion_tokens: NonNegativeInt = 1
    min_new_tokens: NonNegativeInt = 0
    min_length: NonNegativeInt = 0
    do_sample: bool = False
    num_beams: int = 1
    temperature: NonNegativeFloat = 1
    repetition_penalty: NonNegativeFloat = 1
    top_k: NonNegativeInt = 0
    no_repeat_ngram_size: NonNegativeInt = 0
    top_p: Share = 1
    min_p: Share = 0
    typical_p: Share = 1
    epsilon_cutoff: Share = 0
    eta_cutoff: Share = 0

    def __post_init__(self) -> None:
        if self.num_beams != 1:
            raise ConfigError(
                f"gen_kwargs.num_beams={self.num_beams}: beam search is not supported."
            )
        check_limits(self, "gen_kwargs.")


def check_generation(config: Config, facts: ModelFacts, tasks: TaskDict) -> None:
    """Raise ConfigError for a generation setting that is unsupported, impossible or leaves no room for a prompt."""
    from moe_lab.engine.sampling import check_task_options

    build(Generation, config.gen_kwargs or {}, "gen_kwargs.")
    length = config.max_length or facts.max_length
    for name, task in tasks["tasks"].items():
        settings = task.get_config("generation_kwargs") or {}
        check_task_options(settings)
        new = next((settings[key] for key in MAX_NEW_TOKENS if settings.get(key) is not None), None)
        if new is None:
            continue
        if not isinstance(new, int) or new < 1:
            raise ConfigError(f"gen_kwargs: max_gen_toks={new} must be a positive integer.")
        if new >= length:
            raise ConfigError(
                f"max_gen_toks={new} of {name} leaves no room for a prompt: the model reads {length} tokens.\n"
                "Lower it with gen_kwargs=max_gen_toks=<n>, or raise max_length."
            )


def check_votes(method: Method, config: Config, tasks: TaskDict) -> None:
    """Raise ConfigError for self-consistency over equal answers: greedy answers of a method without randomness."""
    if config.task.self_consistency is None or method.random:
        return
    if not all(
        task.get_config("generation_kwargs")["do_sample"] for task in tasks["tasks"].values()
    ):
        raise ConfigError(
            f"task.self_consistency={config.task.self_consistency}: without sampling all answers of "
            f"method={config.method.name} are equal. Sample: gen_kwargs=temperature=0.7"
        )


def check_code_execution(config: Config, tasks: TaskDict) -> None:
    """Raise TaskError for a task that executes generated programs where they cannot be.

    That is where limits of the user are too low, or bubblewrap does not work, unless that is confirmed.
    """
    unsafe = any(executes_code(task) for task in tasks["tasks"].values())
    if not unsafe or config.predict_only:
        return
    check_user_limits(Limits())
    if not config.task.confirm_run_unsafe_code:
        check_sandbox()


def check_metric(config: Config, tasks: TaskDict) -> None:
    """Raise TaskError for a headline metric that no task reports."""
    metric = config.task.metric
    if metric is None or config.predict_only:
        return
    known = {
        f"{name},{output_filter.name}"
        for task in tasks["tasks"].values()
        for name in task.aggregation()
        for output_filter in output_filters(task)
    }
    if metric not in known:
        raise TaskError(
            f"task.metric={metric} is not reported by {config.task.name}.{did_you_mean(metric, sorted(known))}\n"
            f"Metrics: {', '.join(sorted(known))}."
        )
