"""The input of one forward pass: new tokens of several sequences after cached ones.

Answer choices and routing samples share a context (`TokenTree`), and prompts share a prefix (`group_by_prefix`).

B = sequences, S = new tokens of each, T = cached slots, M = logit positions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise, takewhile
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from moe_lab.routing.noise import absorb

T = TypeVar("T")


def token_names(ids: Sequence[int], positions: Sequence[int] | range) -> np.ndarray:
    """int64 [T]: a hash of each token and its position (that of `routing/noise.py`)."""
    id_T, position_T = (torch.as_tensor(values, dtype=torch.int64) for values in (ids, positions))
    return absorb(absorb(torch.zeros_like(id_T), id_T), position_T).numpy()


def prefix_names(ids: Sequence[int]) -> np.ndarray:
    """int64 [T]: the name of each token together with all tokens before it, the sum of their hashes.

    A name does not depend on the batch, the order, the padding or shared prefixes. Causal models route tokens with
    equal names alike, so names identify routing decisions across passes.
    """
    return np.cumsum(token_names(ids, range(len(ids))))


MIN_SHARED = 16
"""A pass of its own costs more than a shorter common prefix saves."""


@dataclass(frozen=True)
class Group:
    """Prompts whose first `shared` tokens are the same, as indices into the list that was grouped.

    One group of each kind has `shared=0`: the prompts without a common prefix.
    """

    members: list[int]
    shared: int


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def group_by_prefix(
    prompts: Sequence[Sequence[int]], kinds: Sequence[int] | None = None
) -> list[Group]:
    """Group prompts by common prefix. The last token of a prompt is never part of it, since a pass needs a token.

    Args:
        kinds: of the texts that the prompts belong to (`RotaryHooks.kind`). Texts of two kinds share no prefix. None:
            all are of one kind.
    """
    if kinds is None:
        return _group_by_prefix(prompts)
    members_of: dict[int, list[int]] = {}
    for i, kind in enumerate(kinds):
        members_of.setdefault(kind, []).append(i)
    groups = []
    for members in members_of.values():
        for group in _group_by_prefix([prompts[i] for i in members]):
            groups.append(Group([members[j] for j in group.members], group.shared))
    return groups


def _group_by_prefix(prompts: Sequence[Sequence[int]]) -> list[Group]:
    """The groups of prompts of one kind.

    In sorted order, prompts with a common prefix are neighbours. A group takes its next neighbour as long as that does
    not lower the number of tokens saved, and leaves it to the next group if it shares more than twice as much with
    that.
    """
    order = sorted(range(len(prompts)), key=lambda i: list(prompts[i]))
    with_previous = [0] + [
        min(common_length(prompts[a], prompts[b]), len(prompts[a]) - 1, len(prompts[b]) - 1)
        for a, b in pairwise(order)
    ]
    groups: list[Group] = []
    alone: list[int] = []
    start = 0
    while start < len(order):
        stop, shared = start + 1, 0
        while stop < len(order):
            size = stop - start
            candidate = with_previous[stop] if size == 1 else min(shared, with_previous[stop])
            following = with_previous[stop + 1] if stop + 1 < len(order) else 0
            alone_is_better = size == 1 and following > 2 * candidate
            if candidate < MIN_SHARED or alone_is_better or candidate * size < shared * (size - 1):
                break
            stop, shared = stop + 1, candidate
        if shared:
            groups.append(Group(order[start:stop], shared))
        else:
            alone += order[start:stop]
        start = stop
    return [*groups, Group(alone, 0)] if alone else groups


def in_runs(items: Iterable[T], fits: Callable[[list[T], T], bool]) -> Iterator[list[T]]:
    """The items in runs of neighbours: an item that does not fit after a run begins the next one.

    Args:
        fits: called with a run of at least one item, and the item after it.
    """
    run: list[T] = []
    for item in items:
        if run and not fits(run, item):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


@dataclass(frozen=True)
class Tokens:
    """New tokens, the slots that each attends to, and the positions whose next-token logits are computed."""

    ids_BS: Tensor
    position_BS: Tensor
    """Index of each token in its unpadded sequence."""
    visible_BSK: Tensor | None
    """bool [B, S, T + S]; None: all cached slots, and the new ones up to the token itself."""
    logit_positions_M: Tensor
    """Flat indices into B x S, ascending; may be empty. The same tensor in two passes: the same sequences."""
    noise_key_B: Tensor
    """Key of each sequence's noise, its `document_key`."""
    sample_index_B: Tensor
    most_logits: int
    """Logit positions of the sequence that has most of them."""
    real_BS: Tensor
    """bool: True for tokens, False for padding."""
    names_BS: Callable[[], np.ndarray]
    """Returns int64 [B, S]: `prefix_names` of each token, 0 for padding. For observers."""
    count: int
    """Tokens, padding excluded."""
    slot: Tensor | None = None
    """int64 [1]: the slot of one new token of each sequence in a fixed cache, all of whose slots `visible_BSK` has."""
    lengths: Sequence[int] = ()
    """The number of tokens of the text that each sequence belongs to, which decides some rotary embeddings."""
    noise: bool = True
    """False: a prefix, which all routing samples read without noise; it has no logit positions."""

    def visible(self, prefix: int) -> Tensor:
        """bool [B, S, prefix + S]: the slots that each token attends to, of `prefix` cached ones and S new ones."""
        if self.visible_BSK is not None:
            return self.visible_BSK
        B, S = self.ids_BS.shape
        causal = torch.ones(S, prefix + S, dtype=torch.bool, device=self.ids_BS.device)
        return (causal.tril(prefix) if S > 1 else causal).expand(B, -1, -1)


class TokenTree:
    """A context, and the continuations that branch off its end.

    Continuations with the same beginning share its nodes. The last token of a continuation is predicted only, so it has
    no node.

    Args:
        context: token ids; at least one is not cached.
        continuations: token ids of each, at least one.
        cached: number of the context's tokens that are in the cache.
        noise_key, sample_index: the keys of the noise, `document` and `repeat` of `gumbel`.
    """

    def __init__(
        self,
        context: Sequence[int],
        continuations: Sequence[Sequence[int]],
        cached: int = 0,
        noise_key: int = 0,
        sample_index: int = 0,
    ):
        self.noise_key, self.sample_index = noise_key, sample_index
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
        self.logit_nodes = sorted({node for path in self.paths for node in path})
        self.positions = list(range(cached, cached + self.chain))
        for parent in self.parents[self.chain :]:
            self.positions.append(self.positions[parent] + 1)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        """Tokens of the longest text in it, cached ones included."""
        return 1 + max(self.positions, default=self.cached - 1)

    @property
    def is_chain(self) -> bool:
        return all(
            parent == node - 1 for node, parent in enumerate(self.parents[self.chain :], self.chain)
        )

    @cached_property
    def visible(self) -> np.ndarray:
        """bool [nodes, nodes]: each node attends to its ancestors and itself."""
        size = len(self)
        visible = np.zeros((size, size), dtype=bool)
        visible[: self.chain, : self.chain] = np.tri(self.chain, dtype=bool)
        for node in range(self.chain, size):
            visible[node] = visible[self.parents[node]]
            visible[node, node] = True
        return visible

    @cached_property
    def names(self) -> np.ndarray:
        """int64 [nodes]: `prefix_names` along each branch."""
        names = np.empty(len(self), dtype=np.int64)
        names[: self.chain] = prefix_names(self.context)[self.cached :]
        branches = slice(self.chain, len(self))
        names[branches] = token_names(self.ids[branches], self.positions[branches])
        with np.errstate(over="ignore"):  # sums wrap around
            for node in range(self.chain, len(self)):
                names[node] += names[self.parents[node]]
        return names


def collate(
    trees: Sequence[TokenTree],
    prefix: int,
    device: torch.device,
    start: int = 0,
    stop: int | None = None,
    left: bool = False,
) -> Tokens:
    """Trees as one batch after `prefix` cached slots, which are the same for all.

    Args:
        start, stop: only these nodes of each tree; earlier ones are the last `start` slots of the cache.
        left: pad on the left, so that all trees end at the same slot, instead of on the right.
    """
    nodes = [
        np.arange(start, len(tree) if stop is None else min(stop, len(tree))) for tree in trees
    ]
    width = max(len(node) for node in nodes)
    offsets = [width - len(node) if left else 0 for node in nodes]
    ids, positions = np.zeros((2, len(trees), width), dtype=np.int64)
    real = np.zeros((len(trees), width), dtype=bool)
    positions_M: list[int] = []
    most_logits = 0
    for b, (tree, node, offset) in enumerate(zip(trees, nodes, offsets, strict=True)):
        here = slice(offset, offset + len(node))
        ids[b, here] = tree.ids[start : start + len(node)]
        real[b, here] = True
        positions[b, here] = tree.positions[start : start + len(node)]
        own_logits = [own - start for own in tree.logit_nodes if start <= own < start + len(node)]
        positions_M += [b * width + offset + own for own in own_logits]
        most_logits = max(most_logits, len(own_logits))
    padded_left = left and len({len(node) for node in nodes}) > 1
    causal = not padded_left and all(tree.is_chain for tree in trees)
    return Tokens(
        ids_BS=torch.from_numpy(ids).to(device),
        position_BS=torch.from_numpy(positions).to(device),
        visible_BSK=None
        if causal
        else _visible(trees, nodes, offsets, width, prefix, start).to(device),
        logit_positions_M=torch.tensor(positions_M, dtype=torch.long, device=device),
        noise_key_B=torch.tensor([tree.noise_key for tree in trees], device=device),
        sample_index_B=torch.tensor([tree.sample_index for tree in trees], device=device),
        most_logits=most_logits,
        real_BS=torch.from_numpy(real).to(device),
        names_BS=partial(_names, trees, nodes, offsets, width),
        count=sum(map(len, nodes)),
        lengths=[tree.length for tree in trees],
    )


def _names(
    trees: Sequence[TokenTree], nodes: list[np.ndarray], offsets: list[int], width: int
) -> np.ndarray:
    names = np.zeros((len(trees), width), dtype=np.int64)
    for b, (tree, node, offset) in enumerate(zip(trees, nodes, offsets, strict=True)):
        names[b, offset : offset + len(node)] = tree.names[node]
    return names


def _visible(
    trees: Sequence[TokenTree],
    nodes: list[np.ndarray],
    offsets: list[int],
    width: int,
    prefix: int,
    start: int,
) -> Tensor:
    """bool [B, S, prefix + S]; the cached slots end with the `start` earlier nodes of each tree."""
    visible = np.zeros((len(trees), width, prefix + width), dtype=bool)
    shared = prefix - start
    visible[:, :, :shared] = True
    for b, (tree, node, offset) in enumerate(zip(trees, nodes, offsets, strict=True)):
        here = slice(offset, offset + len(node))
        own = tree.visible[node[0] : node[-1] + 1] if len(node) else tree.visible[:0]
        visible[b, here, shared:prefix] = own[:, :start]
        visible[b, here, prefix + offset : prefix + offset + len(node)] = own[
            :, start : start + len(node)
        ]
    return torch.from_numpy(visible)
