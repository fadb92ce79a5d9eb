"""Which judges a run has, told from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moe_lab.config.schema import JUDGES
from moe_lab.errors import ConfigError
from moe_lab.tasks.judges.judge import Judge

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config

MODEL_KEYS = {"reward": "reward_model", "llama_guard": "guard_model", "openai": "moderation_model"}
"""The key of `task` that names a judge's model."""


def judge_class(name: str) -> type[Judge]:
    """The class of a judge of `moe_lab.config.schema.JUDGES`."""
    if name == "toy":
        from moe_lab.tasks.judges.toy import ToyJudge

        return ToyJudge
    if name == "reward":
        from moe_lab.tasks.judges.reward import RewardModel

        return RewardModel
    if name == "llama_guard":
        from moe_lab.tasks.judges.llama_guard import LlamaGuard

        return LlamaGuard
    from moe_lab.tasks.judges.moderation import Moderation

    return Moderation


def judge_names(config: Config) -> list[str]:
    """Judges of the safety tasks of a run, in one order: those asked for, else the embedded model's toy judge."""
    if config.task.judges is not None:
        return [name for name in JUDGES if name in config.task.judges]
    return ["reward", "llama_guard"] if config.model.path else ["toy"]


def judges_of(config: Config, tasks: TaskDict) -> tuple[Judge, ...]:
    """The judges of a run's tasks; none where no task is judged, or no score is wanted.

    Raises ConfigError for a judge, or a judge's model, that would judge nothing.
    """
    from moe_lab.tasks.judges.lm_eval_hooks import is_judged

    judged = [name for name, task in tasks["tasks"].items() if is_judged(task)]
    given = {judge: key for judge, key in MODEL_KEYS.items() if getattr(config.task, key) is not None}
    if not judged:
        keys = [*(["judges"] if config.task.judges is not None else []), *given.values()]
        if keys:
            raise ConfigError(f"task.{keys[0]}: no task of this run is judged. Leave it out.")
        return ()
    names = judge_names(config)
    for judge, key in given.items():
        if judge not in names:
            raise ConfigError(
                f"task.{key} names the model of the judge {judge}, which does not judge: task.judges="
                f"[{','.join(names)}]. Add {judge} there, or leave it out."
            )
    return () if config.predict_only else tuple(judge_class(name)(config) for name in names)
