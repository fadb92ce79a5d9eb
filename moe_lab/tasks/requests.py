"""lm-eval's requests of a task's documents, the same ones each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moe_lab.tasks.loading import seed_as_lm_eval

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config import Config


def reseed(config: Config, tasks: TaskDict) -> None:
    """Start all randomness that prompts are made of, so that the same ones are built each time."""
    seed_as_lm_eval()
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(config.fewshot_seed)


def build_requests(
    config: Config, task: Any, lm: Any, samples: list[int] | None = None
) -> list[list[Instance]]:
    """lm-eval's requests of a task, document by document; `samples` are sorted document numbers, None means all.

    `lm` has `apply_chat_template` and `tokenizer_name`, which are asked where the run wants a chat template.
    """
    reseed(config, {"tasks": {task.task_name: task}, "groups": {}, "group_map": {}})
    chat = bool(config.apply_chat_template)
    task.build_all_requests(
        limit=None,
        samples=None if samples is None else set(samples),
        rank=0,
        world_size=1,
        system_instruction=config.system_instruction,
        apply_chat_template=chat,
        fewshot_as_multiturn=config.fewshot_as_multiturn,
        chat_template=lm.apply_chat_template if chat else None,
        tokenizer_name=lm.tokenizer_name if chat else "",
    )
    by_document: dict[int, list[Instance]] = {}
    for instance in task.instances:
        by_document.setdefault(instance.doc_id, []).append(instance)
    return list(by_document.values())
