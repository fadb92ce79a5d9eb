"""Self-consistency (`task.self_consistency`): samples of each answer, and a vote over what a task
extracts of them.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (arXiv
2203.11171). The samples are lm-eval's `repeats`. The vote is its filter `majority_vote`, but 29 and
29.0 are the same answer.
"""

from __future__ import annotations

from typing import Any

from moe_lab.errors import TaskError
from moe_lab.tasks.answer_numbers import vote
from moe_lab.tasks.judges import score

TEMPERATURE = 0.7
"""The temperature of the samples if neither the task nor `gen_kwargs` turns sampling on."""


def voted(config: dict[str, Any], count: int) -> dict[str, Any]:
    """An lm-eval task's configuration with `count` samples, and a vote in each of its filters
    before `take_first`.

    The most frequent answer wins; of equally frequent answers, the one that was sampled first.
    Samples without an extracted answer vote for the filter's fallback, such as "[invalid]".

    Raises TaskError for a task without an extracted answer.
    """
    reason = _why_no_vote(config)
    if reason is not None:
        raise TaskError(
            f"task.self_consistency={count} votes over the answers that a task extracts from "
            f"generated texts, and {config['task']} {reason}.\nLeave it out."
        )
    filters = []
    for ensemble in config["filter_list"]:
        *steps, take_first = ensemble["filter"]
        vote_step = {"function": "custom", "filter_fn": vote}
        filters.append({**ensemble, "filter": [*steps, vote_step, take_first]})
    generation = sampling(config)
    return {**config, "repeats": count, "filter_list": filters, "generation_kwargs": generation}


def sampling(config: dict[str, Any]) -> dict[str, Any]:
    """The generation settings of a task's configuration, with sampling at TEMPERATURE where it is
    greedy."""
    generation = dict(config.get("generation_kwargs") or {})
    if not generation.get("do_sample"):
        generation |= {"do_sample": True, "temperature": TEMPERATURE}
    return generation


def _why_no_vote(config: dict[str, Any]) -> str | None:
    """Why there is nothing to vote over in a task; None if there is."""
    if "class" in config:
        return "is a Python class"
    if config.get("output_type") != "generate_until":
        return "scores given texts"
    if config.get("unsafe_code"):
        return "executes programs"
    if config.get("process_results") is score:
        return "is judged"
    if config.get("repeats", 1) != 1:
        return "has repeats of its own"
    filters = config.get("filter_list")
    if not isinstance(filters, list) or not all(_extracts(ensemble) for ensemble in filters):
        return "extracts none"
    return None


def _extracts(ensemble: dict[str, Any]) -> bool:
    """Whether a filter extracts an answer from every sample, and takes the first one at its end."""
    functions = [step["function"] for step in ensemble["filter"]]
    if len(functions) < 2 or functions[-1] != "take_first":
        return False
    return "take_first" not in functions[:-1]
