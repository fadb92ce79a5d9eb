"""The prefix KV cache: keys and values of prompts as the plain model computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from moe_lab.engine.forward.batch import TokenTree, collate
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.forward.memory_bound import Store
from moe_lab.engine.forward.prefixes import Group, group_by_prefix
from moe_lab.engine.scoring.scoring import Budget, shared_prefix


class PrefixCache:
    """Reads prompts without noise, and keeps their keys and values as far as they fit into `store`."""

    def __init__(self, store: Store[KVCache]):
        self.store = store

    def of(self, forward: EnsembleForward, prompts: Sequence[Sequence[int]], budget: Budget) -> list[KVCache]:
        """The cache of each prompt, which may be empty, with one sequence. Prompts that are not kept are read."""
        keys = [tuple(prompt) for prompt in prompts]
        found = {key: prefix for key in keys if (prefix := self.store.get(key)) is not None}
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        for group in group_by_prefix(missing):
            for key, prefix in _read(forward, [missing[i] for i in group.members], group, budget):
                found[key] = prefix
                self.store.add(key, prefix)
        return [found[key] for key in keys]


def _read(
    forward: EnsembleForward, prompts: list[tuple[int, ...]], group: Group, budget: Budget
) -> Iterator[tuple[tuple[int, ...], KVCache]]:
    """(prompt, its cache) for all of a group, in passes of prompts of similar length."""
    members = sorted(prompts, key=len, reverse=True)
    prefix = shared_prefix(forward, members[0][: group.shared])
    while members:
        width = len(members[0]) - group.shared
        if not width:
            yield from ((prompt, forward.new_cache()) for prompt in members)
            return
        count = max(1, min(budget.tokens // width, budget.sequences or len(members)))
        batch, members = members[:count], members[count:]
        trees = [TokenTree(prompt, [], group.shared) for prompt in batch]
        capacity = group.shared + width
        cache = prefix.expanded(len(batch), capacity) if prefix else forward.new_cache(capacity)
        forward(replace(collate(trees, group.shared, forward.device), noise=False), cache)
        for b, (prompt, tree) in enumerate(zip(batch, trees, strict=True)):
            yield prompt, cache.taken(b, group.shared + len(tree))
