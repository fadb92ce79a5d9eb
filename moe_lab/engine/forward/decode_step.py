"""A step of decoding over tensors that stay in place, which a GPU repeats without the host (a CUDA
graph).

A small step is bound by the host, which starts more than a thousand operations one by one. Here no
shape and no address changes between two steps of a batch, so that all operations of a step are
recorded once and started together.

B = sequences of a batch, the finished ones included, K = slots of the cache, n = routing samples, V
= vocabulary.
"""

import logging
import warnings
from functools import cache

import numpy as np
import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.forward import NEVER_RECORDED, EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.errors import first_line

logger = logging.getLogger("moe_lab")
RECORDED = 3
"""The step of a batch that is recorded. Recording takes as long as some ten steps, and many answers
are shorter."""
AHEAD = 512
"""Free slots after the newest token of a recorded step, which attention reads and masks. When they
are full, a step is recorded anew."""


class DecodeStep:
    """The steps of one batch. Finished sequences keep their places; their results mean nothing and
    are not counted.

    Args:
        cache: of all tokens but the newest of each sequence, with room for all steps. It is used by
            these steps alone.
        real_BT: bool, the cached slots that hold a token.
        noise_key_B, sample_index_B, prompt_length_B: of `Tokens`.
    """

    def __init__(
        self,
        forward: EnsembleForward,
        cache: KVCache,
        real_BT: Tensor,
        noise_key_B: Tensor,
        sample_index_B: Tensor,
        prompt_length_B: Tensor,
    ):
        device = forward.device
        B, T = real_BT.shape
        R = 1 + forward.extra_slots
        capacity = cache.layers[-1].keys.shape[2]
        K = min(capacity, T + R + AHEAD)
        self.forward = forward
        self.cache = cache
        self.noise_key_B = noise_key_B
        self.sample_index_B = sample_index_B
        self.prompt_length_B = prompt_length_B
        self.length = T
        """Slots in use."""
        self.input_4B = torch.zeros(4, B, dtype=torch.int64, device=device)
        """Of the next step: tokens, positions, whether each sequence is unfinished, and the
        slot."""
        self.row_B = torch.arange(B).to(device)
        self.slot_K = torch.arange(K).to(device)
        self.sample_R = torch.arange(R).to(device)
        self.real_BK = torch.nn.functional.pad(real_BT, (0, K - T), value=True)
        self.steps = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        """Computes `scores_BV` of a recorded step."""
        self.slots: dict[int, Tensor] = {}
        cache.fix(T, K, self.slots)

    @property
    def full(self) -> bool:
        """Whether the next step does not fit into the K slots."""
        return self.length + len(self.sample_R) > len(self.slot_K)

    @torch.inference_mode()
    def __call__(self, tokens: list[int], positions: list[int], unfinished: list[bool]) -> Tensor:
        """float32 [B, V]: `Ensemble.next_scores` after these tokens, one of each sequence, until
        the next call."""
        rows = [tokens, positions, unfinished, [self.length] * len(tokens)]
        self.input_4B.copy_(torch.tensor(rows, dtype=torch.int64), non_blocking=True)
        self.steps += 1
        if self.forward.records and self.steps == RECORDED:
            self._record()
        if self.graph is not None:
            self.graph.replay()
        elif self.forward.records and self.steps == RECORDED - 1:
            self._check()
        else:
            self.scores_BV = self._run()
        self.length += 1
        self.forward.tokens_in += sum(unfinished) * self.forward.ensemble.n
        return self.scores_BV

    def _check(self) -> None:
        """A step that shows whether the host waits for the device.

        A recording would fail there, and leave torch's stream and allocator in the middle of it.
        """
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self.scores_BV = self._run()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        messages = [str(warning.message) for warning in warned]
        if any("called a synchronizing CUDA operation" in message for message in messages):
            self._give_up("the host reads values of it")

    def _record(self) -> None:
        """Record a step as a graph, whose replay then computes `scores_BV`; give up if it fails."""
        graph = torch.cuda.CUDAGraph()
        stream = _stream(self.forward.device)
        try:
            with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
                self.scores_BV = self._run()
            self.graph = graph
        except RuntimeError as error:
            self._give_up(first_line(error))

    def _give_up(self, reason: str) -> None:
        """Record no step of this model from now on, and warn."""
        NEVER_RECORDED.add(self.forward.model)
        self.forward.records = False
        logger.warning(
            "Decoding is slower than it could be: a step of %s in %s cannot be recorded as a CUDA "
            "graph (%s).",
            type(self.forward.model).__name__,
            self.forward.model.dtype,
            reason,
        )

    def _run(self) -> Tensor:
        """float32 [B, V]: a step, computed from `input_4B` by operations that a graph can
        repeat."""
        slot = self.input_4B[3, :1]
        self.slots.update({1: slot, len(self.sample_R): slot + self.sample_R})
        visible_BK = self.real_BK & (self.slot_K <= slot)
        tokens = Tokens(
            ids_BS=self.input_4B[0][:, None],
            position_BS=self.input_4B[1][:, None],
            visible_BSK=visible_BK[:, None],
            logit_positions_M=self.row_B,
            noise_key_B=self.noise_key_B,
            sample_index_B=self.sample_index_B,
            prompt_length_B=self.prompt_length_B,
            most_logits=1,
            real_BS=self.input_4B[2][:, None].bool(),
            names_BS=lambda: np.zeros((len(self.row_B), 1), dtype=np.int64),
            count=0,
            slot=slot,
        )
        logits_MnV = self.forward.run(tokens, self.cache).logits_MnV
        return self.forward.ensemble.next_scores(logits_MnV)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a GPU that recordings use. Torch's own default belongs to the GPU of the first
    recording."""
    return torch.cuda.Stream(device)
