"""Requests of given sizes, for estimates."""

from moe_lab.engine.planned import Asked, Prompt
from moe_lab.tasks.workload import Workload


def generating(documents: int, prompt: int, new: int, prompts_each: int = 1) -> Workload:
    """Documents with `prompts_each` prompts of `prompt` tokens and answers of `new` tokens.

    The prompts begin differently.
    """
    prompts = {str(i): Prompt((i,) * prompt, (new,)) for i in range(documents * prompts_each)}
    return Workload(documents, ((1, Asked(generated={"": prompts})),))
