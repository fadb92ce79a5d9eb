"""Which prompts share a beginning, and the names of tokens. Broken by equal names of other texts.

The cache equals transformers' own and drops slots at no cost; a store keeps values within its bound.
"""

import random
from itertools import permutations

import torch
from transformers import DynamicCache

from moe_lab.engine.forward.batch import (
    MIN_SHARED,
    TokenTree,
    collate,
    group_by_prefix,
    prefix_names,
    token_names,
)
from moe_lab.engine.forward.kv_cache import KVCache, Store, token_bytes
from tests.support.families import VOCAB
from tests.support.slow_routing import MASK, slow_hash


def prompts_of(beginning, count, rng, length=10):
    return [[*beginning, *(rng.randrange(1000) for _ in range(length))] for _ in range(count)]


def test_two_subjects_are_two_groups():
    rng = random.Random(0)
    first, second = [list(range(s, s + 40)) for s in (0, 500)]
    prompts = prompts_of(first, 5, rng) + prompts_of(second, 7, rng)
    groups = group_by_prefix(prompts)
    assert sorted((len(group.members), group.shared) for group in groups) == [(5, 40), (7, 40)]


def test_every_prompt_is_in_one_group_and_shares_what_it_says():
    rng = random.Random(1)
    for _ in range(50):
        prompts = [[rng.randrange(2) for _ in range(rng.randrange(1, 60))] for _ in range(20)]
        prompts += prompts_of([1] * rng.randrange(1, 30), 5, rng)
        groups = group_by_prefix(prompts)
        assert sorted(i for group in groups for i in group.members) == list(range(len(prompts)))
        for group in groups:
            beginnings = {tuple(prompts[i][: group.shared]) for i in group.members}
            assert len(beginnings) == 1
            assert all(len(prompts[i]) > group.shared for i in group.members)
            assert group.shared == 0 or (group.shared >= MIN_SHARED and len(group.members) > 1)


def test_a_stranger_does_not_lower_what_others_share():
    rng = random.Random(2)
    common = list(range(100))
    prompts = [common[:20] + [0] * 5, *prompts_of(common, 10, rng)]
    assert {(len(group.members), group.shared) for group in group_by_prefix(prompts)} == {
        (1, 0),
        (10, 100),
    }


def test_unlike_prompts_share_nothing():
    (group,) = group_by_prefix([[i, *range(50)] for i in range(6)])
    assert group.shared == 0 and len(group.members) == 6


def test_the_same_prompt_twice_shares_all_but_its_last_token():
    (group,) = group_by_prefix([list(range(30))] * 2)
    assert group.shared == 29


def signed(value: int) -> int:
    return (value & MASK) - 2**64 * ((value & MASK) >> 63)


def test_a_name_is_the_sum_of_the_hashes_of_tokens_and_positions():
    ids = [7, 3, 7, 250_000, 0]
    hashes = [slow_hash(token, place) for place, token in enumerate(ids)]
    assert token_names(ids, range(5)).tolist() == list(map(signed, hashes))
    assert prefix_names(ids).tolist() == [signed(sum(hashes[: i + 1])) for i in range(5)]


def test_the_same_tokens_in_another_order_have_another_name():
    """A name identifies routing: equal names would give one text the experts of another."""
    texts = list(permutations([5, 6, 7, 8]))
    assert len({prefix_names(text)[-1] for text in texts}) == len(texts)


def test_a_branch_of_a_pass_has_the_names_of_its_whole_text():
    tree = TokenTree([4, 5], [[6, 7], [6, 8], [5, 7]])
    tokens = collate([tree], 0, torch.device("cpu"))
    names = set(tokens.names_BS().reshape(-1).tolist())
    for answer in ([6, 7], [6, 8], [5, 7]):  # the last token of a text is not read
        assert set(prefix_names([4, 5, *answer[:-1]]).tolist()) <= names


IDS = torch.arange(11)[None] * 13 % VOCAB


def filled(model, cache, ids=IDS):
    with torch.no_grad():
        model(ids, cache=cache, use_cache=True)
    return cache


def columns(cache, layer):
    return cache.layers[layer].keys[:, :, : cache.layers[layer].length]


def test_holds_the_same_as_transformers_cache(moe_model):
    ours = filled(moe_model, KVCache(4, capacity=3))
    filled(moe_model, ours, IDS[:, :4])
    theirs = DynamicCache(config=moe_model.config)
    filled(moe_model, theirs)
    filled(moe_model, theirs, IDS[:, :4])
    for layer in range(4):
        assert torch.equal(columns(ours, layer), theirs.layers[layer].keys)


def test_the_bytes_of_a_token_are_those_that_the_cache_takes(moe_model):
    cache = filled(moe_model, KVCache(moe_model.config.num_hidden_layers, capacity=11))
    assert cache.nbytes == 11 * token_bytes(moe_model)


def test_keep_forgets_and_the_buffer_stays(olmoe):
    cache = filled(olmoe, KVCache(4, capacity=32))
    before, place = columns(cache, 2)[:, :, :6].clone(), cache.layers[2].keys.data_ptr()
    cache.keep(6)
    filled(olmoe, cache, IDS[:, :2])
    assert cache.length == 8
    assert torch.equal(columns(cache, 2)[:, :, :6], before)
    assert cache.layers[2].keys.data_ptr() == place


def test_expanded_is_a_copy_for_each_sequence(olmoe):
    cache = filled(olmoe, KVCache(4))
    copy = cache.expanded(3, capacity=20)
    assert copy.length == cache.length and copy.layers[0].keys.shape[0] == 3
    copy.layers[0].keys.zero_()
    assert columns(cache, 0).abs().sum() > 0


def test_right_aligned_ends_together(olmoe):
    parts = [filled(olmoe, KVCache(4), IDS[:, :n]) for n in (5, 9)]
    joined = KVCache.right_aligned(parts, capacity=12)
    assert joined.length == 9
    for layer in range(4):
        assert torch.equal(joined.layers[layer].keys[0, :, 4:9], columns(parts[0], layer)[0])
        assert torch.equal(joined.layers[layer].keys[1, :, :9], columns(parts[1], layer)[0])
    joined.select(torch.tensor([1]), 2)
    assert torch.equal(columns(joined, 3), columns(parts[1], 3))
    again = KVCache.right_aligned(parts, capacity=12, keep=False)
    assert (
        torch.equal(again.layers[3].keys[1, :, :9], columns(joined, 3)[0]) and parts[1].nbytes == 0
    )


def test_the_store_stays_within_its_bound():
    store = Store(100)
    for key in range(4):
        store.add(key, torch.zeros(10))
    assert [key for key in range(4) if store.get(key) is not None] == [0, 1]
    assert store.nbytes == 80
