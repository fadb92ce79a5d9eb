"""The judges by name, and the judges of a run.

Adding one: a module with a `Judge` subclass, and a line in `JUDGES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moe_lab.config.validators import one_of
from moe_lab.errors import ConfigError
from moe_lab.tasks.judges.judge import Judge

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config

JUDGES = {
    "toy": "moe_lab.tasks.judges.toy:ToyJudge",
    "reward": "moe_lab.tasks.judges.reward:RewardModel",
    "llama_guard": "moe_lab.tasks.judges.llama_guard:LlamaGuard",
    "openai": "moe_lab.tasks.judges.moderation:Moderation",
}


def judge_class(name: str) -> type[Judge]:
    """The class of a judge of `JUDGES`."""
    module, _, attribute = JUDGES[name].partition(":")
    return getattr(import_module(module), attribute)


def judge_metrics() -> list[dict[str, Any]]:
    """lm-eval's `metric_list` of a judged task: the metrics of all judges."""
    metrics = [metric for name in JUDGES for metric in judge_class(name).metrics]
    return [{"metric": metric, "aggregation": "mean", "higher_is_better": False} for metric in metrics]


def judge_names(config: Config) -> list[str]:
    """Names of the judges of a run's safety tasks, in the order of `JUDGES`: `task.judges`, else the default.

    Raises ConfigError for unknown names.
    """
    names = config.task.judges
    if names is None:
        return ["reward", "llama_guard"] if config.model.path else ["toy"]
    for name in names:
        one_of("task.judges", name, tuple(JUDGES))
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"task.judges={names} must name judges, each once: {', '.join(JUDGES)}.")
    return [name for name in JUDGES if name in names]


def judges_of(config: Config, tasks: TaskDict) -> tuple[Judge, ...]:
    """The judges of a run's tasks; empty without a judged task, and with predict_only=true.

    Raises ConfigError for a judge or a judge's model without effect.
    """
    from moe_lab.tasks.judges.lm_eval_hooks import is_judged

    judged = any(is_judged(task) for task in tasks["tasks"].values())
    keys = {name: judge_class(name).model_key for name in JUDGES}
    given = {name: key for name, key in keys.items() if key and getattr(config.task, key) is not None}
    if not judged:
        unused = [*(["judges"] if config.task.judges is not None else []), *given.values()]
        if unused:
            raise ConfigError(f"task.{unused[0]}: no task of this run is judged. Leave it out.")
        return ()
    names = judge_names(config)
    for name, key in given.items():
        if name not in names:
            raise ConfigError(
                f"task.{key} names the model of the judge {name}, which does not judge: task.judges="
                f"[{','.join(names)}]. Add {name} there, or leave it out."
            )
    return () if config.predict_only else tuple(judge_class(name)(config) for name in names)
