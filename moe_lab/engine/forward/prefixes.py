"""Groups of prompts with a common prefix, which is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

MIN_SHARED = 16
"""Shorter common prefixes are not worth a pass of their own."""


@dataclass(frozen=True)
class Group:
    """Prompts whose first `shared` tokens are the same, as indices into the list that was grouped.

    One group has `shared=0`: the prompts without a common prefix.
    """

    members: list[int]
    shared: int


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def group_by_prefix(prompts: Sequence[Sequence[int]]) -> list[Group]:
    """Group prompts by common prefix. The last token of a prompt is never part of it, since a pass needs a token.

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
