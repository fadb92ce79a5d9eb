"""The KV cache equals transformers' own and drops slots at no cost; a store
keeps values within its bound.

Broken by keys in another slot, a copy that shares memory, bytes that are not those of the tensors.
"""

from typing import Any

import torch
from transformers import DynamicCache

from moe_lab.engine.forward.kv_cache import KVCache, Store, token_bytes
from tests.support.families import VOCAB

IDS = torch.arange(11)[None] * 13 % VOCAB


def filled(model: Any, cache: Any, ids: torch.Tensor = IDS) -> Any:
    """The cache, with the keys and values of tokens that the model reads."""
    with torch.no_grad():
        model(ids, cache=cache, use_cache=True)
    return cache


def keys_of(cache: KVCache, layer: int) -> torch.Tensor:
    """The keys of a layer in the slots that are filled: [sequences, heads, slots, head size]."""
    return cache.layers[layer].keys[:, :, : cache.layers[layer].length]


def test_holds_the_same_as_transformers_cache(moe_model):
    ours = filled(moe_model, KVCache(4, capacity=3))
    filled(moe_model, ours, IDS[:, :4])
    expected_cache = DynamicCache(config=moe_model.config)
    filled(moe_model, expected_cache)
    filled(moe_model, expected_cache, IDS[:, :4])
    for layer in range(4):
        assert torch.equal(keys_of(ours, layer), expected_cache.layers[layer].keys)


def test_the_bytes_of_a_token_are_those_that_the_cache_takes(moe_model):
    cache = filled(moe_model, KVCache(moe_model.config.num_hidden_layers, capacity=11))
    assert cache.nbytes == 11 * token_bytes(moe_model)


def test_keep_forgets_and_the_buffer_stays(olmoe):
    cache = filled(olmoe, KVCache(4, capacity=32))
    keys = keys_of(cache, 2)[:, :, :6].clone()
    address = cache.layers[2].keys.data_ptr()

    cache.keep(6)
    filled(olmoe, cache, IDS[:, :2])

    assert cache.length == 8
    assert torch.equal(keys_of(cache, 2)[:, :, :6], keys)
    assert cache.layers[2].keys.data_ptr() == address


def test_expanded_is_a_copy_for_each_sequence(olmoe):
    cache = filled(olmoe, KVCache(4))
    copy = cache.expanded(3, capacity=20)
    assert copy.length == cache.length
    assert copy.layers[0].keys.shape[0] == 3
    copy.layers[0].keys.zero_()
    assert keys_of(cache, 0).abs().sum() > 0


def test_right_aligned_ends_together(olmoe):
    short = filled(olmoe, KVCache(4), IDS[:, :5])
    long = filled(olmoe, KVCache(4), IDS[:, :9])
    joined = KVCache.right_aligned([short, long], capacity=12)
    assert joined.length == 9
    for layer in range(4):
        short_keys, long_keys = joined.layers[layer].keys
        assert torch.equal(short_keys[:, 4:9], keys_of(short, layer)[0])
        assert torch.equal(long_keys[:, :9], keys_of(long, layer)[0])


def test_a_sequence_of_a_joined_cache_is_selected(olmoe):
    short = filled(olmoe, KVCache(4), IDS[:, :5])
    long = filled(olmoe, KVCache(4), IDS[:, :9])
    joined = KVCache.right_aligned([short, long], capacity=12)
    joined.select(torch.tensor([1]), 2)
    assert torch.equal(keys_of(joined, 3), keys_of(long, 3))


def test_caches_that_are_not_kept_are_emptied(olmoe):
    short = filled(olmoe, KVCache(4), IDS[:, :5])
    long = filled(olmoe, KVCache(4), IDS[:, :9])
    keys = keys_of(long, 3)[0].clone()
    joined = KVCache.right_aligned([short, long], capacity=12, keep=False)
    assert torch.equal(joined.layers[3].keys[1, :, :9], keys)
    assert long.nbytes == 0


def test_the_store_stays_within_its_bound():
    store = Store(100)
    for key in range(4):
        store.add(key, torch.zeros(10))
    stored_keys = [key for key in range(4) if store.get(key) is not None]
    assert stored_keys == [0, 1]
    assert store.nbytes == 80
