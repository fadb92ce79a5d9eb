"""Checks of `metrics=` against the method, the model and the tasks, made before weights are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods.roe.method import RoE

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts


def check_metrics(method: Method, config: Config, facts: ModelFacts, tasks: TaskDict) -> None:
    """Raise ConfigError if the metrics are not defined for the run, ModelError for a model without experts."""
    if config.metrics == "expert":
        _check_expert(method, config, facts, tasks)
    elif config.metrics == "counterfactual":
        _check_counterfactual(method, config, tasks)


def _check_counterfactual(method: Method, config: Config, tasks: TaskDict) -> None:
    """Routes at equal compute are those of noisy samples over a clean history, for tokens of a given text."""
    if not isinstance(method, RoE):
        raise ConfigError(
            f"metrics=counterfactual scores the routes that RoE's noise proposes, and method={config.method.name} "
            "proposes none. Use method=roe."
        )
    settings = method.config
    wanted = {"cache": "clean", "weights": "clean", "adaptive": None, "include_clean": True}
    if other := [key for key, value in wanted.items() if getattr(settings, key) != value]:
        raise ConfigError(
            "metrics=counterfactual compares n routes of every token, the router's among them, that differ in this "
            f"token's experts alone. method.{other[0]}={getattr(settings, other[0])} computes others. Leave it out."
        )
    if method.logit_scale != 1:
        raise ConfigError(
            "metrics=counterfactual scores single routes, whose mean is what "
            f"method.logit_scale={method.logit_scale} scales. Leave it out."
        )
    if settings.n == 1:
        raise ConfigError("metrics=counterfactual: method.n=1 proposes no route. Raise it.")
    for name, task in tasks["tasks"].items():
        if task.get_config("output_type") == "generate_until":
            raise ConfigError(
                f"metrics=counterfactual scores the tokens of given texts and right choices, and answers of {name} are "
                "generated. Use a task such as toy_text, toy_choice or wikitext."
            )
    if config.model.tp_plan is not None:
        raise ConfigError(
            "metrics=counterfactual takes one process. Use model.device_map=auto for a large model."
        )


def _check_expert(method: Method, config: Config, facts: ModelFacts, tasks: TaskDict) -> None:
    """Expert metrics are not defined for a method that mixes routings, or without an accuracy."""
    from moe_lab.tasks.judges.lm_eval_hooks import is_judged

    if not method.own_routing:
        raise ConfigError(
            f"metrics=expert is about a model's own routing, and method={config.method.name} routes otherwise or reads "
            "other texts.\nUse method=base (with model.path= for a model of your own), finetune-freeze or c2r."
        )
    if facts.fixed_routing:
        raise ConfigError(
            f"metrics=expert reads and changes the routing of single tokens, which {facts.path or facts.name} does not "
            f"allow: {facts.fixed_routing}.\nLeave metrics=expert out."
        )
    if config.predict_only:
        raise ConfigError(
            "metrics=expert compares scores, and predict_only=true computes none. Leave one out."
        )
    if judged := [name for name, task in tasks["tasks"].items() if is_judged(task)]:
        raise ConfigError(
            f"metrics=expert compares accuracies, and {judged[0]} has none: its answers are judged.\n"
            "Leave metrics=expert out, or take a task with right answers."
        )
    if config.model.tp_plan is not None:
        raise ConfigError("metrics=expert takes one process. Use model.device_map=auto for a large model.")
    if not facts.moe_layers:
        from moe_lab.routing.hook import no_router_message

        raise ModelError(no_router_message(facts.path or facts.name, facts.family))
    if facts.top_k >= facts.experts:
        raise ConfigError(
            f"metrics=expert masks an expert, and this model takes all of its {facts.experts} for every token."
        )
