"""Breaks if an entropy is in other units, an expert counts its pairs with itself, or intervals do not cover."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from moe_lab.metrics.collaboration import collaboration
from moe_lab.metrics.counts import pair_counts
from moe_lab.metrics.entropies import measured
from moe_lab.metrics.load_balance import load_balance

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


def test_the_jackknife_is_that_of_its_definition() -> None:
    """Against a loop over documents, on several layers of which one has fewer experts."""
    random = np.random.default_rng(3)
    counts = random.integers(0, 5, size=(7, 2, E))
    counts[:, 1, 6:] = 0
    counts[2] = 0  # a document without tokens says nothing
    found = measured(counts, [E, 6], load_balance, [math.log2(E), math.log2(6)])
    assert found is not None
    told = np.delete(counts, 2, axis=0)
    without = np.array([load_balance(np.delete(told, g, axis=0).sum(axis=0), [E, 6]) for g in range(6)])
    whole = load_balance(told.sum(axis=0), [E, 6])
    for layer in range(2):
        pseudo = 6 * whole[layer] - 5 * without[:, layer]
        half = 2.570582 * pseudo.std(ddof=1) / 6**0.5  # Student's, 5 degrees of freedom
        one = found["layers"][layer]
        assert one["counted"] == pytest.approx(whole[layer])
        assert one["value"] == pytest.approx(min(pseudo.mean(), one["maximum"]))
        assert one["ci95"] == pytest.approx([pseudo.mean() - half, min(pseudo.mean() + half, one["maximum"])])
    assert found["counted"] == pytest.approx(whole.mean())


def documents(random: np.random.Generator, count: int) -> np.ndarray:
    """Pairs [count, 1, E, E] of documents with 20 tokens each, that take 3 of 8 experts by their own preferences."""
    kinds = random.dirichlet(np.full(E, 4.0), size=count)
    noisy = np.log(kinds)[:, None] + random.gumbel(size=(count, 20, E))
    chosen = np.argsort(-noisy, axis=-1)[..., :3]
    taken = np.zeros((count, 20, E), dtype=np.int64)
    np.put_along_axis(taken, chosen, 1, axis=-1)
    return np.einsum("nte,ntf->nef", taken, taken)[:, None]


@pytest.mark.parametrize("n", [100, 500])
@pytest.mark.parametrize("metric", [load_balance, collaboration])
def test_intervals_cover_the_value_of_all_documents(n: int, metric: Callable[..., np.ndarray]) -> None:
    """In 400 samples of documents: with 95% coverage, fewer than 364 (91%) or more than 396 have odds below 1 in 1,000.

    An interval that ignored documents' differences, or the bias of entropies of counts, would cover far less.
    """
    random = np.random.default_rng(1)
    everything = documents(random, 20_000)
    pick = (lambda pairs: np.diagonal(pairs, axis1=-2, axis2=-1)) if metric is load_balance else (lambda x: x)
    truth = float(metric(pick(everything.sum(axis=0)), [E]).mean())
    covered = 0
    for _ in range(400):
        counts = pick(everything[random.integers(len(everything), size=n)])
        found = measured(counts, [E], metric, [math.log2(E)])
        assert found is not None and found["ci95"][0] <= found["value"] <= found["ci95"][1]
        covered += found["ci95"][0] <= truth <= found["ci95"][1]
    assert 364 <= covered <= 396
