"""The content of a run's id: everything that determines the numbers, and nothing else."""

from dataclasses import replace
from typing import Any

from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config
from moe_lab.methods.method import Method
from moe_lab.models.facts import ModelFacts
from moe_lab.models.identity import model_identity
from moe_lab.models.new_text import depends_on_context
from moe_lab.models.source import model_source
from moe_lab.results.identity import HASHED, group_settings, task_settings
from moe_lab.results.names import folder_name, task_label
from moe_lab.runs.model_files import tokenizer_of
from moe_lab.tasks.document_hashes import documents_digest
from moe_lab.tasks.loading import once


def identity(
    config: Config,
    method: Method,
    facts: ModelFacts,
    tasks: TaskDict,
    samples: dict[str, list[int]],
    documents: dict[str, list[int]] | None = None,
) -> dict[str, Any]:
    """The content that is hashed to a run's id, as plain values.

    Args:
        samples: document numbers per task.
        documents: the same documents as numbers in `task_docs`; None if both agree.
    """
    data = _data_content(config, method, facts)
    groups = tasks.get("groups", {})
    return {
        "model": _model_content(config, facts, tasks),
        "dtype": facts.dtype,
        "method": _method_content(method, facts, data),
        "tasks": {name: task_settings(task) for name, task in tasks["tasks"].items()},
        "groups": {name: group_settings(group) for name, group in groups.items()},
        "settings": {name: getattr(config, name) for name in sorted(HASHED)},
        "samples": samples,
        "documents": documents_digest(tasks, documents or samples),
        "seed": config.seed if method.random else None,
    }


def _model_content(config: Config, facts: ModelFacts, tasks: TaskDict) -> dict[str, Any]:
    """The model's content, and marks for models whose numbers an earlier version of this package
    computed otherwise."""
    content = dict(model_identity(model_source(config.model), config.model))
    if facts.rope_by_length:
        # results from before each text had its own embeddings are of another run
        content["rotary"] = "of each text"
    if _generates(tasks) and depends_on_context(tokenizer_of(config)):
        # results from before answers kept the blank at their beginning are of another run
        content["answers"] = "decoded in context"
    return content


def _data_content(config: Config, method: Method, facts: ModelFacts) -> Any:
    """The identity of the data that the method reads, looked up once in a command."""
    determines = replace(config, overrides=[], rerun=False)
    return once(
        f"data {determines} {method.config} {facts}", lambda: method.data_identity(config, facts)
    )


def _method_content(method: Method, facts: ModelFacts, data: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"config": method.identity(facts), "numerics": method.version}
    if data:
        content["reads"] = data
    return content


def _generates(tasks: TaskDict) -> bool:
    """Whether a task has generated answers."""
    return any(
        task.get_config("output_type") == "generate_until" for task in tasks["tasks"].values()
    )


def run_name(config: Config, digest: str) -> str:
    """`<model>-<method>-<task>-<id8>`: the name of a run's folder."""
    task = task_label(config.task.name)
    return folder_name(config.model.name, config.method.name, task, digest=digest)
