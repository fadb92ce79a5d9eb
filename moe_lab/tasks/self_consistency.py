"""`task.self_consistency=k`: k sampled answers to each document, and a majority vote over what the task extracts.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (arXiv 2203.11171). The samples
are lm-eval's `repeats`, the vote is its filter `majority_vote`.
"""

from __future__ import annotations

from typing import Any

from moe_lab.errors import TaskError
from moe_lab.tasks.judges.lm_eval_hooks import score

TEMPERATURE = 0.7
"""Of the samples, where neither the task nor `gen_kwargs` samples."""


def voted(config: dict[str, Any], count: int) -> dict[str, Any]:
    """An lm-eval task's configuration with `count` samples, and a vote in each of its filters before `take_first`.

    The answer that most samples have wins; of several such answers, the one that was sampled first. Samples of which a
    filter extracts nothing vote for its fallback, such as "[invalid]".

    Raises TaskError for a task without an extracted answer.
    """
    if reason := _why_not(config):
        raise TaskError(
            f"task.self_consistency={count} votes over the answers that a task extracts from generated texts, and "
            f"{config['task']} {reason}.\nLeave it out."
        )
    filters = [
        {**one, "filter": [*one["filter"][:-1], {"function": "majority_vote"}, one["filter"][-1]]}
        for one in config["filter_list"]
    ]
    generation = dict(config.get("generation_kwargs") or {})
    if not generation.get("do_sample"):
        generation |= {"do_sample": True, "temperature": TEMPERATURE}
    return {**config, "repeats": count, "filter_list": filters, "generation_kwargs": generation}


def _why_not(config: dict[str, Any]) -> str | None:
    if "class" in config:
        return "is a Python class"
    if config.get("output_type") != "generate_until":
        return "scores given texts"
    if config.get("unsafe_code"):
        return "executes programs"
    if config.get("process_results") is score:
        return "is judged"
    if config.get("repeats", 1) != 1:
        return f"has repeats={config['repeats']} of its own"
    filters = config.get("filter_list")
    if not isinstance(filters, list) or not all(map(_extracts, filters)):
        return "extracts none"
    return None


def _extracts(one: dict[str, Any]) -> bool:
    """Whether a filter extracts an answer from every sample, and takes the first one at its end."""
    functions = [step["function"] for step in one["filter"]]
    return len(functions) > 1 and "take_first" not in functions[:-1] and functions[-1] == "take_first"
