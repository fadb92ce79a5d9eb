"""How lm-eval's requests of a task's documents are built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moe_lab.models.lm_eval_internals import request_arguments
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.loading import seed_as_lm_eval

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config


def reseed(config: Config, tasks: TaskDict) -> None:
    """Set all seeds that prompts depend on, so that the same prompts are built each time."""
    seed_as_lm_eval()
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(config.fewshot_seed)


def build_requests(
    config: Config, task: Any, lm: Any = None, *, samples: list[int] | None = None
) -> list[list[Instance]]:
    """lm-eval's requests of a task, document by document; `samples` are sorted document numbers,
    None means all.

    `lm` has `apply_chat_template` and `tokenizer_name`, which are read if the run has a chat
    template. None: those of the run's tokenizer.
    """
    from moe_lab.models.tokenizer import Framing, prompt_tokenizer

    lm = lm or Framing(lambda: prompt_tokenizer(config), config.apply_chat_template)
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


def right_request(config: Config, task: Any, instances: list[Instance]) -> tuple:
    """The arguments of the request that scores the right answer of a document.

    (prompt, answer), or (text,) for loglikelihood_rolling. The answer of a generation task is the
    first target.

    Args:
        instances: the requests of the document.
    """
    document = instances[0].doc
    kind = task.get_config("output_type")
    if kind in ("loglikelihood", "loglikelihood_rolling"):
        return request_arguments(instances[0])
    if kind == "multiple_choice":
        return instances[gold_choice(task, document)].args
    from moe_lab.engine.hf import THINK_END

    target = task.doc_to_target(document)
    if isinstance(target, list):
        target = target[0]
    delimiter = "" if config.apply_chat_template else task.config.target_delimiter
    prompt, settings = instances[0].args
    # a model that reasons answers after this text
    think_end = settings.get(THINK_END, "")
    return prompt + think_end, f"{delimiter}{target}"
