"""The model classes of vLLM with RoE.

Without `additional_config={"roe": ...}` they run as vLLM's own classes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from vllm.logger import init_logger
from vllm.model_executor.models.mixtral import MixtralForCausalLM
from vllm.model_executor.models.olmoe import OlmoeForCausalLM
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

from moe_lab_vllm.clean import CleanCache
from moe_lab_vllm.options import Options
from moe_lab_vllm.standard import StandardCache

logger = init_logger("vllm.moe_lab_vllm")


class _RoE:
    """Goes before a class of vLLM, whose `forward` and `compute_logits` it extends."""

    def __init__(self, *, vllm_config: Any, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        options = Options.of(vllm_config)
        self.roe: CleanCache | StandardCache | None = None
        if options is not None:
            cache = CleanCache if options.cache == "clean" else StandardCache
            compute_logits = super().compute_logits  # type: ignore[misc]
            self.roe = cache(self, compute_logits, options, vllm_config)
            logger.info("RoE: %s, temperatures %s", options, self.roe.routers.temperatures)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Any:
        forward = super().forward  # type: ignore[misc]
        run = partial(forward, input_ids, positions, intermediate_tensors, inputs_embeds)
        return run() if self.roe is None else self.roe.forward(run, positions)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        if self.roe is not None:
            return self.roe.compute_logits(hidden_states)
        return super().compute_logits(hidden_states)  # type: ignore[misc]


class RoEMixtral(_RoE, MixtralForCausalLM):
    """Mixtral."""


class RoEOlmoe(_RoE, OlmoeForCausalLM):
    """OLMoE."""


class RoEQwen3Moe(_RoE, Qwen3MoeForCausalLM):
    """Qwen3-MoE."""
