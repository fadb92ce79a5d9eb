"""Which request a row of the batch belongs to, and the key of its noise.

vLLM's first model runner reports the requests of a batch to its logits processors before each pass.
`Requests` is such a processor. It does not change logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from moe_lab.routing.noise import document_key

NAME = "moe_lab_vllm.requests"
"""The name among the objects that vLLM gives to a forward pass."""


@dataclass(frozen=True)
class Request:
    """One request of the batch."""

    document: int
    """`document_key` of its context: the whole prompt, if `extra_args` do not say otherwise."""
    repeat: int
    """Number of the answer, where a prompt has several."""
    first: int
    """Position of the last token of the context.

    With the clean cache, earlier positions have no noisy samples.
    """


class Requests(LogitsProcessor):
    """The requests of the batch.

    `SamplingParams(extra_args={"roe": {"context": 57, "repeat": 1}})` sets their keys.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool):
        self._of_index: dict[int, Request] = {}
        vllm_config.compilation_config.static_forward_context[NAME] = self

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for unknown or impossible `extra_args["roe"]`."""
        given = (sampling_params.extra_args or {}).get("roe", {})
        smallest = {"context": 1, "repeat": 0}
        if not isinstance(given, dict) or not set(given) <= set(smallest):
            raise ValueError(
                f"extra_args roe={given!r}: must be a dictionary with the keys context and repeat."
            )
        for key, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < smallest[key]:
                raise ValueError(
                    f"extra_args roe.{key}={value!r}: "
                    f"must be an integer of at least {smallest[key]}."
                )

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._of_index, batch_update, request_of)

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: Tensor) -> Tensor:
        return logits

    def columns(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """document, repeat and first, each int64, of the requests at these places of the batch."""
        rows = [self._of_index[i] for i in range(max(self._of_index, default=-1) + 1)]
        table = torch.tensor(
            [(row.document, row.repeat, row.first) for row in rows], dtype=torch.int64
        )
        document, repeat, first = table.to(index.device)[index].unbind(dim=1)
        return document, repeat, first


def request_of(params: SamplingParams, prompt: list[int] | None, _: list[int]) -> Request:
    """The keys of a request with these parameters and this prompt."""
    if prompt is None:
        raise ValueError(
            "RoE in vLLM: prompt embeddings have no ids for the key of the noise. Give ids or text."
        )
    own = (params.extra_args or {}).get("roe", {})
    context = prompt[: own.get("context", len(prompt))]
    first = len(context) - 1 if "context" in own else 0
    return Request(document_key(context), own.get("repeat", 0), first)
