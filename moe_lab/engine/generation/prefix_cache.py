"""Clean pasts of prompts: their keys and values as the untouched model computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from moe_lab.engine.forward.batch import TreeRow, collate
from moe_lab.engine.forward.forward import RowForward
from moe_lab.engine.forward.kv_cache import RowCache
from moe_lab.engine.forward.memory_bound import Store
from moe_lab.engine.forward.prefixes import Group, group_by_prefix
from moe_lab.engine.scoring.scoring import Budget, shared_past


class CleanPasts:
    """Reads prompts without noise, and keeps what it read as far as `store` takes it."""

    def __init__(self, store: Store[RowCache]):
        self.store = store

    def of(self, forward: RowForward, prompts: Sequence[Sequence[int]], budget: Budget) -> list[RowCache]:
        """A cache of one sequence for each prompt, which may be empty; those that are not kept are read here."""
        keys = [tuple(prompt) for prompt in prompts]
        found = {key: past for key in keys if (past := self.store.get(key)) is not None}
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        for group in group_by_prefix(missing):
            for key, past in _read(forward, {i: missing[i] for i in group.members}, group, budget):
                found[key] = past
                self.store.add(key, past)
        return [found[key] for key in keys]


def _read(
    forward: RowForward, prompts: dict[int, tuple[int, ...]], group: Group, budget: Budget
) -> Iterator[tuple[tuple[int, ...], RowCache]]:
    """(prompt, its past) for all of a group, in passes of prompts of like length."""
    members = sorted(prompts.values(), key=len, reverse=True)
    past = shared_past(forward, members[0][: group.shared])
    while members:
        width = len(members[0]) - group.shared
        if not width:
            yield from ((prompt, forward.new_cache()) for prompt in members)
            return
        count = max(1, min(budget.tokens // width, budget.sequences or len(members)))
        batch, members = members[:count], members[count:]
        rows = [TreeRow(prompt, [], group.shared) for prompt in batch]
        capacity = group.shared + width
        cache = past.expanded(len(batch), capacity) if past else forward.new_cache(capacity)
        forward(replace(collate(rows, group.shared, forward.device), noise=False), cache)
        for b, (prompt, row) in enumerate(zip(batch, rows, strict=True)):
            yield prompt, cache.taken(b, group.shared + len(row))
