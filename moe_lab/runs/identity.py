"""The content of a run's id: all that determines the numbers, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moe_lab.models.identity import model_identity
from moe_lab.models.source import model_source
from moe_lab.results.identity import HASHED, folder_name, task_label, task_settings
from moe_lab.tasks.documents import documents_digest

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config
    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts


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
    data = method.data_identity(config, facts)
    return {
        "model": model_identity(model_source(config.model), config.model),
        "dtype": facts.dtype,
        "method": {"config": method.identity(facts), "numerics": method.version}
        | ({"reads": data} if data else {}),
        "tasks": {name: task_settings(task) for name, task in tasks["tasks"].items()},
        "groups": {name: sorted(children) for name, children in tasks.get("group_map", {}).items()},
        "settings": {name: getattr(config, name) for name in sorted(HASHED)},
        "samples": samples,
        "documents": documents_digest(tasks, documents or samples),
        "seed": config.seed if method.random else None,
    }


def run_name(config: Config, digest: str) -> str:
    """`<model>-<method>-<task>-<id8>`: the name of a run's folder."""
    return folder_name(config.model.name, config.method.name, task_label(config.task.name), digest=digest)
