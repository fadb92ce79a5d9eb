"""Which prompts begin alike, so that their common beginning is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

MIN_SHARED = 16
"""Tokens below which sharing a beginning is not worth a pass of its own."""


@dataclass(frozen=True)
class Group:
    """Prompts whose first `shared` tokens are the same; `members` are indices into the list that was grouped.

    With `shared=0`: all prompts that share nothing worth it.
    """

    members: list[int]
    shared: int


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning of two sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def group_by_prefix(prompts: Sequence[Sequence[int]]) -> list[Group]:
    """Group prompts by their beginnings; a prompt's last token is never shared, for something must follow the prefix.

    Sorted, prompts that begin alike are neighbours. A group takes its next neighbour as long as that does not lower
    the number of tokens saved, and leaves it to the following group if it shares more than twice as much with that.
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
