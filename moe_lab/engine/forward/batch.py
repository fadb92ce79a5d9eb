"""What one forward pass is given: sequences of new tokens over a cached past.

B = sequences, S = new tokens of each, T = cached columns, M = wanted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from moe_lab.engine.forward.token_hash import prefix_names, token_names_at


@dataclass(frozen=True)
class Tokens:
    """New tokens, what each may attend to, and those whose next-token distribution is wanted."""

    ids_BS: Tensor
    position_BS: Tensor
    """Index of each token in its unpadded sequence."""
    visible_BSK: Tensor | None
    """bool [B, S, T + S]; None: every past column and the causal part of the new ones."""
    wanted_M: Tensor
    """Flat indices into B x S, ascending; may be empty."""
    document_B: Tensor
    """`document_key` of each sequence, for keyed noise."""
    repeat_B: Tensor
    real_BS: Tensor | None = None
    """bool: which tokens are no padding; None: all."""
    names_BS: Callable[[], np.ndarray] | None = None
    """Gives int64 [B, S]: `prefix_names` of each token (observer.py), 0 for padding."""
    count: int | None = None
    """Tokens, padding excluded; None: all."""
    noise: bool = True
    """False: a prefix, which all routing samples read without noise; it has no logit positions."""

    def visible(self, past: int) -> Tensor:
        """bool [B, S, past + S]: what each token may attend to behind `past` columns, spelled out."""
        if self.visible_BSK is not None:
            return self.visible_BSK
        B, S = self.ids_BS.shape
        causal = torch.ones(S, past + S, dtype=torch.bool, device=self.ids_BS.device).tril(past)
        return causal.expand(B, -1, -1)


class TreeRow:
    """A chain of context tokens, then continuations that branch off its end.

    Continuations that begin alike share those nodes. The last token of a continuation is no node: it is predicted,
    never read.

    Args:
        context: token ids, at least one that is not cached.
        continuations: token ids of each, none empty.
        cached: how many of the context's tokens are in the cache already.
        document, repeat: keys of the noise.
    """

    def __init__(
        self,
        context: Sequence[int],
        continuations: Sequence[Sequence[int]],
        cached: int = 0,
        document: int = 0,
        repeat: int = 0,
    ):
        self.document, self.repeat = document, repeat
        self.continuations = continuations
        self.context, self.cached = context, cached
        self.ids = list(context[cached:])
        self.chain = len(self.ids)
        self.parents = list(range(-1, self.chain - 1))
        self.paths: list[list[int]] = []
        """Per continuation: the node after which each of its tokens is predicted."""
        children: dict[tuple[int, int], int] = {}
        for continuation in continuations:
            path = [self.chain - 1]
            for token in continuation[:-1]:
                node = children.setdefault((path[-1], token), len(self.ids))
                if node == len(self.ids):
                    self.ids.append(token)
                    self.parents.append(path[-1])
                path.append(node)
            self.paths.append(path)
        self.wanted = sorted({node for path in self.paths for node in path})
        self.positions = self._positions(cached)

    def __len__(self) -> int:
        return len(self.ids)

    def _positions(self, cached: int) -> list[int]:
        positions = list(range(cached, cached + self.chain))
        for parent in self.parents[self.chain :]:
            positions.append(positions[parent] + 1)
        return positions

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents[self.chain :], self.chain))

    @cached_property
    def visible(self) -> np.ndarray:
        """bool [nodes, nodes]: each node sees its ancestors and itself."""
        size = len(self)
        visible = np.zeros((size, size), dtype=bool)
        visible[: self.chain, : self.chain] = np.tri(self.chain, dtype=bool)
        for node in range(self.chain, size):
            visible[node] = visible[self.parents[node]]
            visible[node, node] = True
        return visible

    @cached_property
    def names(self) -> np.ndarray:
        """int64 [nodes]: the name of each node with all before it."""
        names = np.empty(len(self), dtype=np.int64)
        names[: self.chain] = prefix_names(self.context)[self.cached :]
        branches = slice(self.chain, len(self))
        names[branches] = token_names_at(self.ids[branches], np.asarray(self.positions[branches]))
        with np.errstate(over="ignore"):  # sums wrap around
            for node in range(self.chain, len(self)):
                names[node] += names[self.parents[node]]
        return names


def collate(
    rows: Sequence[TreeRow],
    past: int,
    device: torch.device,
    pad: int = 0,
    start: int = 0,
    stop: int | None = None,
    left: bool = False,
) -> Tokens:
    """Rows as one batch behind `past` cached columns that all of them share.

    Args:
        start, stop: only these nodes of each row; earlier ones are then the last `start` columns of the cache.
        left: pad before the tokens, so that all rows end together, instead of behind them.
    """
    nodes = [np.arange(start, len(row) if stop is None else min(stop, len(row))) for row in rows]
    width = max(len(node) for node in nodes)
    offsets = [width - len(node) if left else 0 for node in nodes]
    ids, positions = np.full((len(rows), width), pad), np.zeros((len(rows), width), dtype=np.int64)
    real = np.zeros((len(rows), width), dtype=bool)
    wanted: list[int] = []
    for b, (row, node, offset) in enumerate(zip(rows, nodes, offsets, strict=True)):
        here = slice(offset, offset + len(node))
        ids[b, here] = row.ids[start : start + len(node)]
        real[b, here] = True
        positions[b, here] = row.positions[start : start + len(node)]
        wanted += [b * width + offset + w - start for w in row.wanted if start <= w < start + len(node)]
    padded_left = left and len({len(node) for node in nodes}) > 1
    causal = not padded_left and all(row.is_chain for row in rows)
    return Tokens(
        ids_BS=torch.from_numpy(ids).to(device),
        position_BS=torch.from_numpy(positions).to(device),
        visible_BSK=None if causal else _visible(rows, nodes, offsets, width, past, start).to(device),
        wanted_M=torch.tensor(wanted, dtype=torch.long, device=device),
        document_B=torch.tensor([row.document for row in rows], device=device),
        repeat_B=torch.tensor([row.repeat for row in rows], device=device),
        real_BS=torch.from_numpy(real).to(device),
        names_BS=partial(_names, rows, nodes, offsets, width),
        count=sum(map(len, nodes)),
    )


def _names(rows: Sequence[TreeRow], nodes: list[np.ndarray], offsets: list[int], width: int) -> np.ndarray:
    names = np.zeros((len(rows), width), dtype=np.int64)
    for b, (row, node, offset) in enumerate(zip(rows, nodes, offsets, strict=True)):
        names[b, offset : offset + len(node)] = row.names[node]
    return names


def _visible(
    rows: Sequence[TreeRow], nodes: list[np.ndarray], offsets: list[int], width: int, past: int, start: int
) -> Tensor:
    """bool [B, S, past + S]; `past` columns end with the `start` earlier nodes of the rows."""
    visible = np.zeros((len(rows), width, past + width), dtype=bool)
    shared = past - start
    visible[:, :, :shared] = True
    for b, (row, node, offset) in enumerate(zip(rows, nodes, offsets, strict=True)):
        here = slice(offset, offset + len(node))
        own = row.visible[node[0] : node[-1] + 1] if len(node) else row.visible[:0]
        visible[b, here, shared:past] = own[:, :start]
        visible[b, here, past + offset : past + offset + len(node)] = own[:, start : start + len(node)]
    return torch.from_numpy(visible)
