"""Requests of given sizes, for estimates."""

from moe_lab.engine.planned import Asked, Prompt
from moe_lab.tasks.workload import Workload


def generating(documents: int, prompt: int, new: int, each: int = 1) -> Workload:
    """Documents with `each` prompts of `prompt` tokens and answers of `new` tokens.

    The prompts begin differently.
    """
    prompts = {str(i): Prompt((i,) * prompt, (new,)) for i in range(documents * each)}
    return Workload(documents, ((1, Asked(generated={"": prompts})),))
