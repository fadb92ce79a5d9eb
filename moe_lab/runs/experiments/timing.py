"""Latency and memory of generating a fixed number of tokens, for several settings in turns."""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

from moe_lab.engine.lm import EngineLM, Request
from moe_lab.models.memory import (
    memory_bytes,
    peak_memory_bytes,
    reset_peak_memory,
    weight_bytes,
)

NEW_TOKENS = 128
"""The paper's latency is the time for 128 tokens."""
REPETITIONS = 5
PROMPT = "Question: Ann has 3 pens and buys 2 more. How many pens does she have now?\nAnswer:"


class TimedGeneration(NamedTuple):
    """What one generation takes."""

    seconds: float
    memory_bytes: int
    """The weights and the peak of additional memory."""


def measure_in_turns(
    settings: Mapping[str, Callable[[], AbstractContextManager[EngineLM]]],
    new_tokens: int = NEW_TOKENS,
    repetitions: int = REPETITIONS,
) -> dict[str, dict[str, float]]:
    """The median of `seconds` and the largest `memory_bytes` of a generation, by setting.

    Batch 1, greedy, no end token. Every setting is measured once per round, so that other load
    affects all equally. The first round is a warm-up.

    Args:
        settings: by name, a context manager that opens the LM.
    """
    rounds: dict[str, list[TimedGeneration]] = {name: [] for name in settings}
    with ExitStack() as stack:
        models = {name: stack.enter_context(opened()) for name, opened in settings.items()}
        for _ in range(repetitions + 1):
            for name, lm in models.items():
                rounds[name].append(_generate_once(lm, new_tokens))
    measured = {}
    for name, generations in rounds.items():
        counted = generations[1:]
        measured[name] = {
            "seconds": statistics.median(generation.seconds for generation in counted),
            "memory_bytes": max(generation.memory_bytes for generation in counted),
        }
    return measured


def _generate_once(lm: EngineLM, new_tokens: int) -> TimedGeneration:
    """Time and memory of one generation. Raises RuntimeError if it has another number of tokens."""
    lm.progress = False
    options = {
        "until": [],
        "max_gen_toks": new_tokens,
        "do_sample": False,
        "suppress_tokens": _end_tokens(lm) or None,
    }
    device = lm.device
    tokens_before = lm.cost["tokens_out"]
    reset_peak_memory(device)
    held = memory_bytes(device)
    start = time.perf_counter()
    lm.answer("generate_until", [Request((PROMPT, options))], lambda *_: None)
    seconds = time.perf_counter() - start
    generated = lm.cost["tokens_out"] - tokens_before
    if generated != new_tokens:
        raise RuntimeError(
            f"{generated} tokens were generated instead of {new_tokens}: no measurement."
        )
    additional = max(0, peak_memory_bytes(device) - held)
    return TimedGeneration(seconds, weight_bytes(lm.model) + additional)


def _end_tokens(lm: EngineLM) -> list[int]:
    """The tokens that end a generation of the model; none if its configuration names none."""
    tokens = lm.model.generation_config.eos_token_id
    if tokens is None:
        return []
    if isinstance(tokens, list):
        return tokens
    return [tokens]
