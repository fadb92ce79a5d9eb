"""The cache equals transformers' own and drops slots at no cost; a store keeps values within its bound."""

import torch
from transformers import DynamicCache

from moe_lab.engine.forward.kv_cache import KVCache, Store, token_bytes
from tests.support.families import VOCAB

IDS = torch.arange(11)[None] * 13 % VOCAB


def filled(model, cache, ids=IDS):
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
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
    assert torch.equal(again.layers[3].keys[1, :, :9], columns(joined, 3)[0]) and parts[1].nbytes == 0


def test_the_store_stays_within_its_bound():
    store = Store(100)
    for key in range(4):
        store.add(key, torch.zeros(10))
    assert [key for key in range(4) if store.get(key) is not None] == [0, 1]
    assert store.nbytes == 80
