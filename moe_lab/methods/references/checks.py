"""Checks of methods that answer multiple-choice questions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError
from moe_lab.models.distributed import num_processes

if TYPE_CHECKING:
    from moe_lab.config.schema import Config


def check_choice_questions(config: Config) -> None:
    """Raise ConfigError for a task that asks for anything but one of several choices, and for several processes."""
    from moe_lab.tasks.loading import load_tasks

    check_one_process(config)
    check_choices(config, load_tasks(config)["tasks"])


def check_one_process(config: Config) -> None:
    """Raise ConfigError under torchrun."""
    if config.model.tp_plan or num_processes() > 1:
        raise ConfigError(
            f"method={config.method.name} runs in one process: leave torchrun and model.tp_plan out "
            "(model.device_map=auto)."
        )


def check_choices(config: Config, tasks: Mapping[str, Any]) -> None:
    """Raise ConfigError for a task, of the run or of its references, that is no multiple-choice task."""
    for name, task in tasks.items():
        if task.get_config("output_type") != "multiple_choice":
            raise ConfigError(
                f"method={config.method.name} is for multiple-choice questions, and {name} asks for texts or their "
                "likelihood."
            )
