"""The sets of texts of `method=steer`: conversations of a data set,
or choices of a task's training documents."""

import hashlib
import json
from dataclasses import replace
from typing import NamedTuple

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
    """One of the two sets: conversations or pairs."""

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
        content = f"choices {task_key(config)} {config.apply_chat_template} {name} {size}"
        return once(content, lambda: _choices(config, key, name, size))
    return Texts(read_data(config, name, size, key=key).train, [])


def _choices(config: RunConfig, key: str, name: str, size: int | None) -> Texts:
    """The right or the wrong choices of a task's training documents, without few-shot examples.

    Documents that are also test documents of the run are left out.
    """
    task_name, _, kind = name.rpartition(":")
    wants_right = kind == RIGHT[1:]
    zero_shot = replace(config, num_fewshot=0, limit=None, samples=None, predict_only=False)
    test_hashes: set[str] = set()
    for task in load_tasks(config)["tasks"].values():
        test_hashes.update(*document_hashes(task))
    try:
        task_config, _ = named_task(config, task_name)
        named = replace(zero_shot, task=task_config)
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
        hashes = document_hashes(task)
        free = [number for number in range(len(hashes)) if not hashes[number] & test_hashes]
        free = free[:size]
        if not free:
            continue
        for instances in build_requests(zero_shot, task, samples=free):
            document = instances[0].doc
            gold = gold_choice(task, document)
            for number in range(number_of_choices(task, document)):
                is_right = number == gold
                if is_right == wants_right:
                    pairs.append(tuple(instances[number].args))
    if not pairs:
        raise ConfigError(
            f"{key}={name}: all training documents of {task_name} are evaluated. Give another task."
        )
    return Texts([], pairs)
