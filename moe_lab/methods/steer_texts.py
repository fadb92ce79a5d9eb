"""The sets of texts of `method=steer`: conversations of a data set, or choices of a task's training
documents."""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from moe_lab.config.schema import Config as RunConfig
from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.methods.data_files import Conversation, read_data
from moe_lab.methods.references.documents import named_task
from moe_lab.tasks.document_hashes import document_hashes
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.lm_eval_versions.documents import number_of_choices
from moe_lab.tasks.loading import load_tasks, once, task_key
from moe_lab.tasks.requests import build_requests

RIGHT = ":right"
"""The ending of a task's name in a set: the right choices of the task's training documents."""
WRONG = ":wrong"
"""The ending of a task's name in a set: all wrong choices of the task's training documents."""
Pair = tuple[str, str]
"""A prompt and a choice, as they are scored."""


class Texts(NamedTuple):
    """One of the two sets: conversations or pairs; the other list is empty."""

    conversations: list[Conversation]
    pairs: list[Pair]

    @property
    def digest(self) -> str:
        """SHA-256 of the texts."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()


def read_texts(config: RunConfig, key: str, name: str, size: int | None) -> Texts:
    """The texts of a data set, or the choices of a task's training documents.

    Raises ConfigError or TaskError, which name `key`, if they cannot be read.
    """
    if name.endswith((RIGHT, WRONG)):
        content = _ChoicesKey(task_key(config), config.apply_chat_template, name, size)
        return once(content, lambda: _choices(config, key, name, size))
    return Texts(read_data(config, name, size, key=key).train, [])


@dataclass(frozen=True)
class _ChoicesKey:
    """All that determines the choices of a set."""

    task: str
    """`task_key` of the evaluated task."""
    apply_chat_template: bool | str | None
    name: str
    size: int | None


def _pairs_of_document(task: Any, instances: list[Any], wants_right: bool) -> list[Pair]:
    """The right choice of a document, or all wrong ones, from its requests."""
    document = instances[0].doc
    gold = gold_choice(task, document)
    pairs: list[Pair] = []
    for number in range(number_of_choices(task, document)):
        is_right = number == gold
        if is_right == wants_right:
            pairs.append(tuple(instances[number].args))
    return pairs


def _choices(config: RunConfig, key: str, name: str, size: int | None) -> Texts:
    """The right or the wrong choices of a task's training documents, without few-shot examples.

    Documents that are also test documents of the run are left out. Raises ConfigError if none is
    left, and for a task without choices.

    Args:
        size: the most documents of each task; None: all.
    """
    task_name, _, kind = name.rpartition(":")
    wants_right = kind == RIGHT[1:]
    zero_shot = replace(config, num_fewshot=0, limit=None, samples=None, predict_only=False)
    test_hashes: set[str] = set()
    for task in load_tasks(config)["tasks"].values():
        test_hashes.update(*document_hashes(task))
    try:
        named = replace(zero_shot, task=named_task(config, task_name).task)
        tasks = load_tasks(named, splits=("training_split",))["tasks"].values()
    except MoeLabError as error:
        raise ConfigError(f"{key}={name}: {error}") from error

    pairs: list[Pair] = []
    for task in tasks:
        if task.get_config("output_type") != "multiple_choice":
            raise ConfigError(
                f"{key}={name}: {task_name} has no choices. Give a multiple-choice task, or a file "
                "of conversations."
            )
        free = []
        for number, hashes in enumerate(document_hashes(task)):
            if hashes.isdisjoint(test_hashes):
                free.append(number)
        free = free[:size]
        if not free:
            continue
        for instances in build_requests(zero_shot, task, samples=free):
            pairs += _pairs_of_document(task, instances, wants_right)
    if not pairs:
        raise ConfigError(
            f"{key}={name}: all training documents of {task_name} are evaluated. Give another task."
        )
    return Texts([], pairs)
