"""The experts of every token that a model reads, stored once for all documents that share the token.

N = distinct tokens (a token with its whole prefix), L = MoE layers, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Tokens, prefix_names, token_names
from moe_lab.engine.forward.observer import Observer
from moe_lab.engine.hf import Request
from moe_lab.errors import RoutingError
from moe_lab.results.logs import request_key
from moe_lab.routing import Router, Routing

NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Read:
    """The tokens of one request, by their names (`engine/forward/batch.py`)."""

    prompt: np.ndarray
    answer: np.ndarray


@dataclass(frozen=True)
class RouteTable:
    """The experts of every distinct token."""

    names_N: np.ndarray
    """Ascending."""
    index: np.ndarray
    """[N, sum of K over layers]"""
    top_k: list[int]

    def of(self, names: np.ndarray) -> list[np.ndarray]:
        """The experts of these tokens by MoE layer: [tokens, K]. Raises RoutingError for a token that was not read."""
        place = np.minimum(np.searchsorted(self.names_N, names), len(self.names_N) - 1)
        if not (self.names_N[place] == names).all():
            raise RoutingError("A token was answered that no router was seen to route. Please report this.")
        return np.split(self.index[place], np.cumsum(self.top_k)[:-1], axis=1)


class Routes(Observer):
    """An observer of the unchanged model: records the experts of all tokens, and the tokens of each request.

    It takes L x K bytes (twice that above 256 experts) per distinct token, and about 16 per token of a request.
    """

    def __init__(self) -> None:
        self.reads: dict[str, list[Read]] = {}
        """By `request_key`."""
        self.experts: dict[int, int] = {}
        """Experts to choose from, per MoE layer."""
        self.top_k: dict[int, int] = {}
        """Experts per token, per MoE layer."""
        self._prompts: dict[tuple[int, ...], np.ndarray] = {}
        self._names = np.zeros(0, dtype=np.int64)
        self._pass: dict[int, Tensor] = {}
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []

    def expect(self, tokens: Tokens) -> None:
        self._keep_pass()
        assert tokens.names_BS is not None
        self._names = tokens.names_BS().reshape(-1)

    def __call__(self, router: Router, routing: Routing) -> None:
        self.experts[router.layer] = routing.logits_TE.shape[-1]
        self.top_k[router.layer] = routing.index_TK.shape[-1]
        self._pass[router.layer] = routing.index_TK.to(torch.int16)

    def read(self, kind: str, request: Request, prompt: Sequence[int], answer: Sequence[int]) -> None:
        mine = self._prompts.get(tuple(prompt))
        if mine is None:
            mine = self._prompts[tuple(prompt)] = prefix_names(prompt)
        rest = NOTHING if not answer else np.cumsum(token_names(answer, first=len(prompt))) + mine[-1:]
        key = request_key(kind, request.args, request.repeat)
        self.reads.setdefault(key, []).append(Read(mine, rest))

    @property
    def layers(self) -> list[int]:
        return sorted(self.experts)

    def table(self) -> RouteTable:
        """The experts of all tokens so far."""
        self._keep_pass()
        names_N, first_N = np.unique(np.concatenate([names for names, _ in self._blocks]), return_index=True)
        index = np.concatenate([index for _, index in self._blocks])[first_N]
        return RouteTable(names_N, index, [self.top_k[layer] for layer in self.layers])

    def _keep_pass(self) -> None:
        """Copy the experts of the last forward pass from the device, without its padding."""
        if not self._pass:
            return
        index_TC = torch.cat([self._pass[layer].cpu() for layer in self.layers], dim=-1).numpy()
        real = self._names != 0
        small = np.uint8 if max(self.experts.values()) <= 256 else np.int16
        self._blocks.append((self._names[real], index_TC[real].astype(small)))
        self._pass = {}
