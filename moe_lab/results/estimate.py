"""How much work a run is, before any weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.run import Run

LOOKED_AT = 8
"""Documents per task whose prompts are built; the others are taken to be alike."""
NEW_TOKENS = 256
"""lm-eval's number of generated tokens where a task names none."""


def estimates(runs: Sequence[Run]) -> list[int]:
    """The estimate of every run; runs that ask the same of a model, as those of a grid do, are looked at once."""
    known: dict[tuple[Any, ...], int] = {}
    found = []
    for run in runs:
        config, rows = run.config, getattr(run.config.method, "n", 1)
        framed = (config.fewshot_seed, config.system_instruction, config.offline)
        asked = (id(run.tasks), str(run.samples), repr(config.model), rows, *framed)
        if asked not in known:
            known[asked] = estimate_forward_tokens(run)
        found.append(known[asked])
    return found


def estimate_forward_tokens(run: Run) -> int:
    """Tokens that a run puts through the model, from a few prompts: an upper estimate for generation.

    A prompt counts once for all its answer choices, every scored or generated token once per row of the method.
    """
    from moe_lab.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(run.config.model, offline=run.config.offline)
    rows = getattr(run.config.method, "n", 1)
    return sum(
        _task_tokens(task, run.samples[name], tokenizer, rows, run)
        for name, task in run.tasks["tasks"].items()
    )


def _task_tokens(task: Any, numbers: list[int], tokenizer: Any, rows: int, run: Run) -> int:
    step = max(1, len(numbers) // LOOKED_AT)
    looked_at = numbers[::step][:LOOKED_AT]
    task.set_fewshot_seed(run.config.fewshot_seed)
    tokens = [_document_tokens(task, task.task_docs[number], tokenizer, rows, run) for number in looked_at]
    return round(sum(tokens) / len(looked_at) * len(numbers))


def _document_tokens(task: Any, document: Any, tokenizer: Any, rows: int, run: Run) -> int:
    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    context = task.fewshot_context(
        document,
        num_fewshot=task.get_config("num_fewshot"),
        system_instruction=run.config.system_instruction,
        gen_prefix=task.doc_to_prefix(document),
    )
    requests = task.construct_requests(doc=document, ctx=context, metadata=(task.task_name, 0, 1))
    prompts: dict[str, int] = {}
    answers = 0
    for request in requests if isinstance(requests, list) else [requests]:
        if request.request_type == "loglikelihood_rolling":
            answers += count(request.args[0])
            continue
        prompts.setdefault(request.args[0], count(request.args[0]))
        if request.request_type == "generate_until":
            answers += int(request.args[1].get("max_gen_toks", NEW_TOKENS)) * (
                task.get_config("repeats") or 1
            )
        else:
            answers += count(request.args[1])
    return sum(prompts.values()) + answers * rows
