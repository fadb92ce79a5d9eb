"""vLLM engines of the cases, and their answers."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

from integrations.vllm.tests.cases import ANSWERS

TINY = Path(__file__).parents[3] / "moe_lab" / "models" / "tiny"
ENGINE: dict[str, Any] = dict(
    dtype="float32", enforce_eager=True, block_size=32, max_model_len=320, max_num_seqs=16
)


def stored(name: str) -> dict[str, Any]:
    """What `moe_lab.RoE` computed in a case."""
    return json.loads(ANSWERS.read_text(encoding="utf-8"))[name]


@contextmanager
def engine(model: Path, roe: dict[str, Any] | None, **arguments: Any) -> Iterator[LLM]:
    """An engine of vLLM; without `roe` that of the base model."""
    llm = LLM(
        str(model),
        skip_tokenizer_init=True,
        additional_config={} if roe is None else {"roe": roe},
        **ENGINE | arguments,
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def generated(
    llm: LLM, prompts: list[list[int]], lengths: list[int], repeat: int = 0
) -> list[list[int]]:
    """Token ids of the greedy texts, each of its length.

    `repeat` is the number of the answer. It is a part of the noise's key.
    """
    parameters = [
        SamplingParams(
            temperature=0,
            max_tokens=length,
            min_tokens=length,
            detokenize=False,
            extra_args={"roe": {"repeat": repeat}} if repeat else None,
        )
        for length in lengths
    ]
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def loglikelihoods(llm: LLM, prompts: list[list[int]], contexts: list[int]) -> list[float]:
    """Sums of the log-probabilities of the tokens after each context."""
    parameters = [
        SamplingParams(
            temperature=0,
            max_tokens=1,
            prompt_logprobs=0,
            detokenize=False,
            extra_args={"roe": {"context": context}},
        )
        for context in contexts
    ]
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False
    )
    return [
        sum(output.prompt_logprobs[i][ids[i]].logprob for i in range(context, len(ids)))
        for output, ids, context in zip(outputs, prompts, contexts, strict=True)
    ]


def counter(llm: LLM, name: str) -> int:
    """A counter of the engine so far."""
    return sum(metric.value for metric in llm.get_metrics() if metric.name == name)
