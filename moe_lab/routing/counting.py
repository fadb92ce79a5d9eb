"""Sums over routing decisions, which do not wait for the device.

T = tokens of a pass, N = counted tokens of a policy among them, L = MoE layers, K = experts per
token.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Totals(NamedTuple):
    """Sums over tokens."""

    values: int
    """The sum of their values."""
    tokens: int
    """Their number."""


class TokenSums:
    """Sums of a value of tokens over all layers and passes, and the number of these tokens."""

    def __init__(self) -> None:
        self._sums: dict[torch.device, Tensor] = {}
        """int64 [2] by device: the sum of the values, and of the tokens that `counted` chose."""
        self._tokens = 0
        """Tokens of calls without `counted`, which the host counts."""

    def add(self, values: Tensor, counted: Tensor | None = None) -> None:
        """Add the value (bool or int64) of each token. `counted` (bool) says which tokens count;
        None: all.

        The sums stay in place, so that a graph of the device can add to them.
        """
        if values.device not in self._sums:
            with torch.inference_mode(False):  # so that passes of either mode may add to it
                zeros = torch.zeros(2, dtype=torch.int64, device=values.device)
            self._sums[values.device] = zeros
        sums = self._sums[values.device]
        if counted is None:
            sums[0] += values.sum()
            self._tokens += values.numel()
        else:
            counted = counted.to(values).expand_as(values)
            # one operation for both sums
            sums += torch.stack([values * counted, counted]).flatten(1).sum(dim=-1)

    @property
    def totals(self) -> Totals:
        """The sums so far. Waits for the device."""
        values = 0
        tokens = self._tokens
        for sums in self._sums.values():
            values_on_device, tokens_on_device = sums.tolist()
            values += values_on_device
            tokens += tokens_on_device
        return Totals(values, tokens)


class DecisionCounter(TokenSums):
    """Counts decisions with another set of experts than before, and all decisions: `totals`.

    Decisions of several layers are compared together: a step of generation has few operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pairs: dict[tuple[torch.device, int], list[tuple[Tensor, Tensor]]] = {}
        """(new, earlier) decisions of each layer, by device and K."""

    def decided(self, index_NK: Tensor, before_TK: Tensor) -> None:
        """Keep the decisions for N of T tokens, and those before them, until `compare`."""
        key = index_NK.device, index_NK.shape[-1]
        self._pairs.setdefault(key, []).append((index_NK, before_TK))

    def compare(self, index_N: Tensor | None = None, counted_N: Tensor | None = None) -> None:
        """Count the decisions that were added.

        Args:
            index_N: int64, the N tokens among the T of the pass; None: all.
            counted_N: bool, which of them count; None: all.
        """
        for pairs in self._pairs.values():
            index_LNK = torch.stack([index_NK for index_NK, _ in pairs])
            before_LNK = torch.stack([before_TK for _, before_TK in pairs])
            if index_N is not None:
                before_LNK = before_LNK[:, index_N.to(before_LNK.device)]
            kept_LNK = (index_LNK[..., None] == before_LNK[..., None, :]).any(dim=-1)
            self.count(kept_LNK.all(dim=-1), counted_N)
        self._pairs.clear()

    def count(self, kept: Tensor, counted: Tensor | None = None) -> None:
        """Count decisions.

        Args:
            kept: bool: whether a decision is the same as before.
            counted: bool: which decisions count; None: all.
        """
        self.add(~kept, counted)
