"""Checks of a run's settings against its method, model and tasks, before weights load."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from moe_lab.methods.method import Method, TrainingMethod
from moe_lab.models.facts import ModelFacts
from moe_lab.models.tokenizer import prompt_tokenizer
from moe_lab.routing.hook import fixed_message, no_router_message
from moe_lab.tasks.lm_eval_versions.documents import executes_code
from moe_lab.tasks.lm_eval_versions.metrics import output_filters
from moe_lab.tasks.loading import MAX_NEW_TOKENS
from moe_lab.tasks.sandbox.programs import Limits, check_sandbox, check_user_limits


def check_router(method: Method, facts: ModelFacts) -> None:
    """Raise ModelError if the method needs a router and the model has none, or none for single
    tokens."""
    name = facts.path or facts.name
    if method.required_routing == "none":
        return
    if method.required_routing == "tokens" and facts.fixed_routing:
        raise ModelError(fixed_message(name, facts.fixed_routing))
    if not facts.moe_layers:
        raise ModelError(no_router_message(f"{name} (model type {facts.family})", facts.family))


def check_chat_template(config: Config) -> None:
    """Raise ConfigError for a chat template that the tokenizer does not have."""
    template = config.apply_chat_template
    if not template:
        return
    templates = prompt_tokenizer(config).chat_template
    names = list(templates) if isinstance(templates, dict) else []
    is_unknown = isinstance(template, str) and template not in names
    if templates and not is_unknown:
        return
    expected = "no chat template"
    if names:
        expected = ", ".join(names)
    elif templates:
        expected = "one without a name (use true)"
    raise ConfigError(f"apply_chat_template={template}: the tokenizer has {expected}.")


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
    """Raise ConfigError for a generation setting that is unsupported or impossible, or that leaves
    no room for a prompt."""
    from moe_lab.engine.sampling import check_task_options

    build(Generation, config.gen_kwargs or {}, "gen_kwargs.")
    length = config.max_length or facts.max_length
    for name, task in tasks["tasks"].items():
        settings = task.get_config("generation_kwargs") or {}
        check_task_options(settings)
        new_tokens = _new_tokens(settings)
        if new_tokens is None:
            continue
        if not isinstance(new_tokens, int) or new_tokens < 1:
            raise ConfigError(f"gen_kwargs: max_gen_toks={new_tokens} must be a positive integer.")
        if new_tokens >= length:
            raise ConfigError(
                f"max_gen_toks={new_tokens} of {name} leaves no room for a prompt: "
                f"the model reads {length} tokens.\n"
                "Lower it with gen_kwargs=max_gen_toks=<n>, or raise max_length."
            )


def _new_tokens(settings: Mapping[str, Any]) -> Any:
    """The most new tokens of a generation; None if no key says it."""
    for key in MAX_NEW_TOKENS:
        if settings.get(key) is not None:
            return settings[key]
    return None


def check_votes(method: Method, config: Config, tasks: TaskDict) -> None:
    """Raise ConfigError for several answers that are all equal: greedy answers of a method without
    routing noise."""
    if config.samples_per_document is not None:
        setting = f"samples_per_document={config.samples_per_document}"
    elif config.task.self_consistency is not None:
        setting = f"task.self_consistency={config.task.self_consistency}"
    else:
        return
    if _has_routing_noise(method, config):
        return
    for task in tasks["tasks"].values():
        if not task.get_config("generation_kwargs")["do_sample"]:
            raise ConfigError(
                f"{setting}: without sampling all answers of method={config.method.name} are "
                "equal. Sample: gen_kwargs=temperature=0.7"
            )


def _has_routing_noise(method: Method, config: Config) -> bool:
    """Whether a method routes each of several answers with noise of its own."""
    if not method.random or isinstance(method, TrainingMethod):
        return False  # the randomness of a training is in the model
    if config.method.name == "roe":
        # sample 0, the only one of n=1, has no noise
        return config.method.n > 1 and config.method.temperature != 0
    return True


def check_code_execution(config: Config, tasks: TaskDict) -> None:
    """Raise TaskError if a task executes generated programs and this machine cannot run them
    safely.

    The user's limits are too low, or bubblewrap does not work and
    `task.confirm_run_unsafe_code` is false.
    """
    executes = any(executes_code(task) for task in tasks["tasks"].values())
    if not executes or config.predict_only:
        return
    check_user_limits(Limits())
    if not config.task.confirm_run_unsafe_code:
        check_sandbox()


def check_metric(config: Config, tasks: TaskDict) -> None:
    """Raise TaskError for a headline metric that no task reports."""
    metric = config.task.metric
    if metric is None or config.predict_only:
        return
    metrics = sorted(_metrics_of(tasks))
    if metric not in metrics:
        raise TaskError(
            f"task.metric={metric} is not reported by {config.task.name}."
            f"{did_you_mean(metric, metrics)}\n"
            f"Metrics: {', '.join(metrics)}."
        )


def _metrics_of(tasks: TaskDict) -> set[str]:
    """The tasks' metrics as lm-eval reports them: `metric,filter`."""
    metrics = set()
    for task in tasks["tasks"].values():
        for name in task.aggregation():
            for output_filter in output_filters(task):
                metrics.add(f"{name},{output_filter.name}")
    return metrics
