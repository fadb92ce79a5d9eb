"""Breaks if an entropy is in other units, an expert counts its pairs with itself, or intervals do not cover."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from moe_lab.metrics.counts import pair_counts
from moe_lab.metrics.entropies import collaboration, load_balance, measured

E = 8


def counts_of(index_TK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(selections [1, E], pairs [1, E, E]) of one layer."""
    pairs = pair_counts([index_TK], [(0, np.zeros(len(index_TK), dtype=np.int64))], E)[0]
    return np.diagonal(pairs, axis1=-2, axis2=-1), pairs


@pytest.mark.parametrize("k", [1, 2, 3])
def test_uniform_routing_has_log2_of_the_experts(k: int) -> None:
    sets = np.array(list(combinations(range(E), k)), dtype=np.uint8)
    selections, pairs = counts_of(sets)
    assert load_balance(selections, [E]) == pytest.approx([math.log2(E)])
    assert collaboration(pairs, [E]) == pytest.approx([math.log2(E - 1) if k > 1 else 0.0])


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_same_experts_every_time_have_log2_of_k(k: int) -> None:
    selections, pairs = counts_of(np.tile(np.arange(k, dtype=np.uint8), (50, 1)))
    assert load_balance(selections, [E]) == pytest.approx([math.log2(k)])
    # k experts with log2(k - 1) each, the others with 0
    assert collaboration(pairs, [E]) == pytest.approx([k * math.log2(max(1, k - 1)) / E])


def test_random_top_1_never_collaborates() -> None:
    index_T1 = np.random.default_rng(0).integers(E, size=(300, 1)).astype(np.uint8)
    assert collaboration(counts_of(index_T1)[1], [E]) == [0.0]


def test_a_layer_with_fewer_experts_is_a_mean_over_its_own() -> None:
    pairs = np.zeros((2, 4, 4))
    pairs[:, :3, :3] = 1
    assert collaboration(pairs, [3, 4]) == pytest.approx([1.0, 0.75])


def test_nothing_counted_is_nothing_measured() -> None:
    assert measured(np.zeros((3, 1, E)), [E], load_balance, [3.0]) is None


def test_one_document_has_no_interval() -> None:
    found = measured(np.ones((1, 1, E)), [E], load_balance, [3.0])
    assert found is not None
    assert found["value"] == pytest.approx(3.0)
    assert found["ci95"] is None


def test_intervals_cover_the_value_of_all_documents() -> None:
    """200 samples of 60 documents from a known mixture: an interval that ignored documents' differences, or the bias of
    entropies of counts, would cover far less. With 95% coverage fewer than 176 of 200 has odds below 1 in 10,000."""
    random = np.random.default_rng(1)
    kinds = random.dirichlet(np.full(E, 0.5), size=200)  # the documents there are, each with its own experts
    truth = float(load_balance(kinds.mean(axis=0)[None], [E])[0])
    covered = 0
    for _ in range(200):
        drawn = kinds[random.integers(len(kinds), size=60)]
        counts = np.stack([random.multinomial(30, kind) for kind in drawn])[:, None]
        found = measured(counts, [E], load_balance, [math.log2(E)])
        assert found is not None
        covered += found["ci95"][0] <= truth <= found["ci95"][1]
    assert covered >= 176
