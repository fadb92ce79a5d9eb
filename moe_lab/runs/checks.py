"""Checks of a run's settings against its method, model and tasks, before weights are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.config.validators import did_you_mean
from moe_lab.errors import ConfigError, ModelError, TaskError
from moe_lab.methods.roe import RoE
from moe_lab.tasks.loading import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts


def check_router(method: Method, facts: ModelFacts) -> None:
    """Raise ModelError if the method needs a router and the model has none, or none for single tokens."""
    from moe_lab.routing.hook import fixed_message, no_router_message

    if method.per_token and facts.fixed_routing:
        raise ModelError(fixed_message(facts.path or facts.name, facts.fixed_routing))
    if method.needs_router and not facts.moe_layers:
        raise ModelError(
            no_router_message(f"{facts.path or facts.name} (model type {facts.family})", facts.family)
        )


def check_chat_template(config: Config) -> None:
    """Raise ConfigError for a chat template that the tokenizer does not have."""
    if not config.apply_chat_template:
        return
    from moe_lab.models.tokenizer import prompt_tokenizer

    templates = prompt_tokenizer(config).chat_template
    if not templates:
        raise ConfigError("apply_chat_template: this tokenizer has no chat template. Leave it out.")
    template = config.apply_chat_template
    if isinstance(template, str) and (not isinstance(templates, dict) or template not in templates):
        names = ", ".join(templates) if isinstance(templates, dict) else "one without a name (use true)"
        raise ConfigError(f"apply_chat_template={template}: the tokenizer has {names}.")


NUMBERS = {
    "temperature": (float, None),
    "top_p": (float, 1),
    "min_p": (float, 1),
    "typical_p": (float, 1),
    "epsilon_cutoff": (float, 1),
    "eta_cutoff": (float, 1),
    "repetition_penalty": (float, None),
    "top_k": (int, None),
    "no_repeat_ngram_size": (int, None),
}
"""Supported numeric generation settings: type, and greatest value. The least is 0."""


def check_generation(config: Config, facts: ModelFacts, tasks: TaskDict) -> None:
    """Raise ConfigError for a generation setting that is unsupported, impossible or leaves no room for a prompt."""
    known = (*MAX_NEW_TOKENS, "until", "do_sample", "num_beams", *NUMBERS)
    value: Any
    for key, value in (config.gen_kwargs or {}).items():
        expected = None
        if key not in known:
            expected = f"one of {', '.join(known)}.{did_you_mean(key, known)}"
        elif key in NUMBERS:
            kind, most = NUMBERS[key]
            is_number = isinstance(value, int | kind) and not isinstance(value, bool)
            if not is_number or value < 0 or (most is not None and value > most):
                expected = f"{kind.__name__}, at least 0" + ("" if most is None else f" and at most {most}")
        elif key == "do_sample" and not isinstance(value, bool):
            expected = "true or false"
        elif key == "num_beams" and value != 1:
            expected = "1, because beam search is not supported"
        elif key == "until":
            texts = value if isinstance(value, list) else [value]
            expected = None if all(isinstance(text, str) for text in texts) else "a text or a list of texts"
        if expected is not None:
            raise ConfigError(f"gen_kwargs: {key}={value} must be {expected}")
    length = config.max_length or facts.max_length
    for name, task in tasks["tasks"].items():
        settings = task.get_config("generation_kwargs") or {}
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
    noiseless = isinstance(method, RoE) and (method.config.n == 1 or method.config.temperature == 0)
    if config.task.self_consistency is None or (method.random and not noiseless):
        return
    for name, task in tasks["tasks"].items():
        if not task.get_config("generation_kwargs")["do_sample"]:
            raise ConfigError(
                f"task.self_consistency={config.task.self_consistency}: without sampling all answers of "
                f"method={config.method.name} to a document of {name} are equal.\n"
                "Leave it out, or sample: gen_kwargs=temperature=0.7"
            )


def check_code_execution(config: Config, tasks: TaskDict) -> None:
    """Raise TaskError for a task that executes generated programs where bubblewrap does not work, unless confirmed."""
    from moe_lab.tasks.sandbox.programs import check_sandbox

    unsafe = any(getattr(task, "UNSAFE_CODE", False) for task in tasks["tasks"].values())
    if unsafe and not config.predict_only and not config.task.confirm_run_unsafe_code:
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
        for output_filter in task._filters
    }
    if metric not in known:
        raise TaskError(
            f"task.metric={metric} is not reported by {config.task.name}.{did_you_mean(metric, sorted(known))}\n"
            f"Metrics: {', '.join(sorted(known))}."
        )
