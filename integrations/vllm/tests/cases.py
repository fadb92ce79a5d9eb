"""The cases that vLLM and `moe_lab.RoE` both compute.

A case has a model, options of RoE, prompts and engine arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).with_name("answers.json")
"""What `moe_lab.RoE` computed; `write_answers.py` writes it."""


@dataclass(frozen=True)
class Case:
    """One comparison. All texts are generated greedily; the last third of each prompt is scored."""

    model: str
    """`tiny`, the embedded model, or a family of `checkpoints.py`."""
    n: int
    temperature: float
    prompts: int
    length: int
    """Tokens of the longest prompt; the others are a little shorter."""
    new: int
    cache: str = "clean"
    engine: dict[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's engine."""
    own_process: bool = False
    """Whether vLLM runs its engine in a process of its own."""
    preempted: bool = False
    """Whether the engine must interrupt texts, because the KV cache is too small for all."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text in vLLM.

        They differ, so that texts end while others go on and take their rows.
        """
        return [self.new - 5 * (i % 3) for i in range(self.prompts)]

    @property
    def options(self) -> dict[str, Any]:
        """The options of RoE, as `moe_lab.RoE` and the plug-in take them."""
        return {"n": self.n, "temperature": self.temperature, "cache": self.cache}


CASES = {
    "temperature 0": Case("tiny", 8, 0.0, prompts=16, length=40, new=48),
    "tiny": Case("tiny", 8, 1.0, prompts=16, length=40, new=48),
    "chunked prefill": Case(
        "tiny", 8, 2.0, prompts=6, length=200, new=40, engine={"max_num_batched_tokens": 96}
    ),
    "preemption": Case(
        *("tiny", 8, 1.0),
        prompts=12,
        length=60,
        new=64,
        preempted=True,
        engine={"num_gpu_blocks_override": 30, "max_model_len": 128},
    ),
    "own process": Case("tiny", 8, 1.0, prompts=12, length=60, new=48, own_process=True),
    "n=32": Case("tiny", 32, 2.0, prompts=6, length=40, new=32),
    "olmoe": Case("olmoe", 8, 1.0, prompts=8, length=40, new=32),
    "mixtral": Case("mixtral", 4, 1.0, prompts=6, length=40, new=32),
    "qwen3_moe": Case("qwen3_moe", 4, 1.0, prompts=6, length=40, new=32),
    "standard": Case(
        *("tiny", 4, 1.0),
        prompts=8,
        length=200,
        new=32,
        cache="standard",
        engine={"max_num_batched_tokens": 160},
    ),
    "standard preemption": Case(
        *("tiny", 4, 1.0),
        prompts=12,
        length=60,
        new=64,
        cache="standard",
        preempted=True,
        engine={"num_gpu_blocks_override": 24, "max_model_len": 128},
    ),
    "standard qwen3_moe": Case("qwen3_moe", 4, 1.0, prompts=6, length=40, new=32, cache="standard"),
}
