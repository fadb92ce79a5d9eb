"""The input of one forward pass: new tokens of several sequences after cached ones.

Answer choices and routing samples share a context (`TokenTree`), and prompts share a prefix
(`group_by_prefix`).

B = sequences, S = new tokens of each, T = cached slots, M = logit positions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from moe_lab.routing.noise import absorb
from moe_lab.routing.tokens import KeyedTokens

T = TypeVar("T")


def token_names(ids: Sequence[int], positions: Sequence[int] | range) -> np.ndarray:
    """int64 [T]: a hash of each token and its position (that of `routing/noise.py`)."""
    id_T = torch.as_tensor(ids, dtype=torch.int64)
    position_T = torch.as_tensor(positions, dtype=torch.int64)
    hashed_ids_T = absorb(torch.zeros_like(id_T), id_T)
    return absorb(hashed_ids_T, position_T).numpy()


def prefix_names(ids: Sequence[int]) -> np.ndarray:
    """int64 [T]: the name of each token together with all tokens before it, the sum of their
    hashes.

    A name does not depend on the batch, the order, the padding or shared prefixes. Causal models
    route tokens with equal names alike, so names identify routing decisions across passes.
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
    length = 0
    for token_a, token_b in zip(a, b, strict=False):
        if token_a != token_b:
            break
        length += 1
    return length


def group_by_prefix(
    prompts: Sequence[Sequence[int]], kinds: Sequence[int] | None = None
) -> list[Group]:
    """Group prompts by common prefix. The last token of a prompt is never part of it, since a pass
    needs a token.

    Args:
        kinds: of the texts that the prompts belong to (`RotaryHooks.kind`). Texts of two kinds
            share no prefix. None: all are of one kind.
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

    In sorted order, prompts with a common prefix are neighbours. A group takes its next neighbour
    as long as that does not lower the number of tokens saved, and leaves it to the next group if it
    shares more than twice as much with that.
    """
    order = sorted(range(len(prompts)), key=lambda i: list(prompts[i]))
    shared_with_previous = [0]
    for previous, current in pairwise(order):
        common = common_length(prompts[previous], prompts[current])
        shorter = min(len(prompts[previous]), len(prompts[current]))
        shared_with_previous.append(min(common, shorter - 1))
    shared_with_previous.append(0)

    groups: list[Group] = []
    without_group: list[int] = []
    start = 0
    while start < len(order):
        shared = 0
        stop = start + 1
        while stop < len(order):
            shared_by_all = _shared_with_next(shared_with_previous, shared, stop - start, stop)
            if shared_by_all is None:
                break
            shared = shared_by_all
            stop += 1
        if shared:
            groups.append(Group(order[start:stop], shared))
        else:
            without_group += order[start:stop]
        start = stop
    if without_group:
        groups.append(Group(without_group, 0))
    return groups


def _shared_with_next(
    shared_with_previous: Sequence[int], shared: int, size: int, number: int
) -> int | None:
    """The length of the prefix of a group with its next neighbour; None: the neighbour stays out.

    Args:
        shared_with_previous: for each prompt in sorted order, the length of the prefix that it
            shares with the one before it; one number more, 0, after the last prompt.
        shared: that of the group's own prefix; 0 for a single prompt.
        size: prompts of the group.
        number: of the neighbour, in sorted order.
    """
    candidate = shared_with_previous[number]
    if size == 1:
        next_pair_is_better = shared_with_previous[number + 1] > 2 * candidate
        if next_pair_is_better:
            return None
    else:
        candidate = min(shared, candidate)
    saves_less = candidate * size < shared * (size - 1)
    if candidate < MIN_SHARED or saves_less:
        return None
    return candidate


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
    """New tokens, the slots that each attends to, and the positions whose next-token logits are
    computed."""

    ids_BS: Tensor
    position_BS: Tensor
    """Index of each token in its unpadded sequence."""
    visible_BSK: Tensor | None
    """bool [B, S, T + S]; None: all cached slots, and the new ones up to the token itself."""
    logit_positions_M: Tensor
    """Flat indices into B x S, ascending; may be empty. The same tensor in two passes: the same
    sequences."""
    noise_key_B: Tensor
    """Key of each sequence's noise, its `document_key`."""
    sample_index_B: Tensor
    prompt_length_B: Tensor
    """int64: tokens of each sequence's prompt, or of its context when scoring. Later ones are
    new."""
    most_logits: int
    """Logit positions of the sequence that has most of them."""
    real_BS: Tensor
    """bool: True for tokens, False for padding."""
    names_BS: Callable[[], np.ndarray]
    """Returns int64 [B, S]: `prefix_names` of each token, 0 for padding. For observers."""
    count: int
    """Tokens, padding excluded."""
    slot: Tensor | None = None
    """int64 [1]: the slot of one new token of each sequence in a fixed cache, all of whose slots
    `visible_BSK` has."""
    lengths: Sequence[int] = ()
    """The number of tokens of the text that each sequence belongs to, which decides some rotary
    embeddings."""
    noise: bool = True
    """False: a prefix, which all routing samples read without noise; it has no logit positions."""

    def visible(self, prefix: int) -> Tensor:
        """bool [B, S, prefix + S]: the slots that each token attends to, of `prefix` cached ones
        and S new ones."""
        if self.visible_BSK is not None:
            return self.visible_BSK
        B, S = self.ids_BS.shape
        causal = torch.ones(S, prefix + S, dtype=torch.bool, device=self.ids_BS.device)
        if S > 1:
            causal = causal.tril(prefix)
        return causal.expand(B, -1, -1)

    def keyed(self) -> KeyedTokens:
        """The B x S tokens, as a policy of the base model knows them."""
        B, S = self.ids_BS.shape
        sequence_B = torch.arange(B, device=self.ids_BS.device)

        def of_tokens(values_B: Tensor) -> Tensor:
            """[B x S]: the values of each sequence, for its tokens."""
            return values_B[:, None].expand(B, S).reshape(-1)

        position_T = self.position_BS.reshape(-1)
        return KeyedTokens(
            real_T=self.real_BS.reshape(-1),
            sequence_T=of_tokens(sequence_B),
            position_T=position_T,
            new_T=position_T >= of_tokens(self.prompt_length_B),
            document_T=of_tokens(self.noise_key_B),
            repeat_T=of_tokens(self.sample_index_B),
            sample_T=torch.zeros_like(position_T),
        )


class TokenTree:
    """A context, and the continuations that branch off its end.

    Continuations with the same beginning share its nodes. The last token of a continuation is
    predicted only, so it has no node.

    Args:
        context: token ids; at least one is not cached.
        continuations: token ids of each, at least one.
        cached: number of the context's tokens that are in the cache.
        noise_key, sample_index: the keys of the noise, `document` and `repeat` of `gumbel`.
        prompt_length: tokens of the prompt, if generated ones are part of the context; None: all of
            it is the prompt.
    """

    def __init__(
        self,
        context: Sequence[int],
        continuations: Sequence[Sequence[int]],
        cached: int = 0,
        noise_key: int = 0,
        sample_index: int = 0,
        prompt_length: int | None = None,
    ):
        self.noise_key = noise_key
        self.sample_index = sample_index
        self.prompt_length = len(context) if prompt_length is None else prompt_length
        self.continuations = continuations
        self.context = context
        self.cached = cached
        self.ids = list(context[cached:])
        """The token of each node."""
        self.chain = len(self.ids)
        """Nodes of the context; those of the continuations follow."""
        self.parents = list(range(-1, self.chain - 1))
        """The node before each node; -1 for the first one."""
        self.paths: list[list[int]] = []
        """Per continuation: the node after which each of its tokens is predicted."""
        children: dict[tuple[int, int], int] = {}
        logit_nodes: set[int] = set()
        for continuation in continuations:
            path = [self.chain - 1]
            for token in continuation[:-1]:
                parent = path[-1]
                if (parent, token) not in children:
                    children[parent, token] = len(self.ids)
                    self.ids.append(token)
                    self.parents.append(parent)
                path.append(children[parent, token])
            self.paths.append(path)
            logit_nodes.update(path)
        self.logit_nodes = sorted(logit_nodes)
        """The nodes after which a token is predicted; none without continuations."""
        self.positions = list(range(cached, cached + self.chain))
        """The index of each node's token in its text."""
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
        """Whether no continuation branches off another one."""
        return self.parents == list(range(-1, len(self) - 1))

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
    """Trees as one batch, a row for each, after `prefix` cached slots, which all trees share.

    Args:
        start, stop: only these nodes of each tree; earlier ones are the last `start` slots of the
            cache.
        left: pad on the left, so that all trees end at the same slot, instead of on the right.
    """
    rows = _rows(trees, start, stop, left)
    S = max(row.count for row in rows)
    ids_BS = np.zeros((len(rows), S), dtype=np.int64)
    position_BS = np.zeros_like(ids_BS)
    real_BS = np.zeros_like(ids_BS, dtype=bool)
    for b, row in enumerate(rows):
        ids_BS[b, row.columns] = row.tree.ids[row.nodes]
        position_BS[b, row.columns] = row.tree.positions[row.nodes]
        real_BS[b, row.columns] = True

    visible_BSK = None
    if _need_mask(rows, S, left):
        visible_BSK = torch.from_numpy(_visible(rows, S, prefix, start)).to(device)
    columns_of_rows = [row.logit_columns() for row in rows]
    keys = [(tree.noise_key, tree.sample_index, tree.prompt_length) for tree in trees]
    noise_key_B, sample_index_B, prompt_length_B = torch.tensor(keys, device=device).unbind(1)
    return Tokens(
        ids_BS=torch.from_numpy(ids_BS).to(device),
        position_BS=torch.from_numpy(position_BS).to(device),
        visible_BSK=visible_BSK,
        logit_positions_M=_flat_indices(columns_of_rows, S).to(device),
        noise_key_B=noise_key_B,
        sample_index_B=sample_index_B,
        prompt_length_B=prompt_length_B,
        most_logits=max(len(columns) for columns in columns_of_rows),
        real_BS=torch.from_numpy(real_BS).to(device),
        names_BS=partial(_names, rows, S),
        count=sum(row.count for row in rows),
        lengths=[tree.length for tree in trees],
    )


@dataclass(frozen=True)
class _Row:
    """A tree's nodes in one row of a batch."""

    tree: TokenTree
    nodes: slice
    offset: int
    """The column of the first node."""

    @property
    def count(self) -> int:
        return self.nodes.stop - self.nodes.start

    @property
    def columns(self) -> slice:
        return slice(self.offset, self.offset + self.count)

    def logit_columns(self) -> list[int]:
        """The columns whose next-token logits are computed."""
        columns = []
        for node in self.tree.logit_nodes:
            if self.nodes.start <= node < self.nodes.stop:
                columns.append(node - self.nodes.start + self.offset)
        return columns


def _rows(trees: Sequence[TokenTree], start: int, stop: int | None, left: bool) -> list[_Row]:
    """The nodes from `start` to `stop` of each tree, padded on the left or on the right."""
    stops = []
    for tree in trees:
        end = len(tree) if stop is None else min(stop, len(tree))
        stops.append(max(start, end))
    longest = max(stops)
    rows = []
    for tree, end in zip(trees, stops, strict=True):
        offset = longest - end if left else 0
        rows.append(_Row(tree, slice(start, end), offset))
    return rows


def _flat_indices(columns_of_rows: Sequence[Sequence[int]], S: int) -> Tensor:
    """int64 [M]: the indices into B x S of these columns, row by row."""
    indices: list[int] = []
    for b, columns in enumerate(columns_of_rows):
        indices += [b * S + column for column in columns]
    return torch.tensor(indices, dtype=torch.long)


def _need_mask(rows: Sequence[_Row], S: int, left: bool) -> bool:
    """Whether some token must not attend to a slot before it: to padding, or to another branch."""
    if left and any(row.count < S for row in rows):
        return True
    return not all(row.tree.is_chain for row in rows)


def _names(rows: Sequence[_Row], S: int) -> np.ndarray:
    """int64 [B, S]: `prefix_names` of the nodes, 0 for padding."""
    names_BS = np.zeros((len(rows), S), dtype=np.int64)
    for b, row in enumerate(rows):
        names_BS[b, row.columns] = row.tree.names[row.nodes]
    return names_BS


def _visible(rows: Sequence[_Row], S: int, prefix: int, start: int) -> np.ndarray:
    """bool [B, S, prefix + S]; the cached slots end with the `start` earlier nodes of each tree."""
    visible_BSK = np.zeros((len(rows), S, prefix + S), dtype=bool)
    shared = prefix - start
    visible_BSK[:, :, :shared] = True
    for b, row in enumerate(rows):
        visible_to_nodes = row.tree.visible[row.nodes]
        new_slots = slice(prefix + row.offset, prefix + row.offset + row.count)
        visible_BSK[b, row.columns, shared:prefix] = visible_to_nodes[:, :start]
        visible_BSK[b, row.columns, new_slots] = visible_to_nodes[:, row.nodes]
    return visible_BSK
