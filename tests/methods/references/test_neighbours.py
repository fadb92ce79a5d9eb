"""Nearest references against a search by hand. Broken by: a neighbour that is too similar or too far, another order, a
count that is off, or a result that depends on how questions are chunked.
"""

from __future__ import annotations

import math

import pytest
import torch

from moe_lab.methods.references import neighbours as module
from moe_lab.methods.references.neighbours import neighbours
from tests.support import rounding


def unit(count: int, size: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=1)


def by_hand(query, references, most_similar, k=None, epsilon=None):
    """[(distance of unit vectors, index)] of one question, and how many were dropped; `epsilon` is of 1 - cos."""
    found, dropped = [], 0
    for index, reference in enumerate(references.tolist()):
        cosine = sum(a * b for a, b in zip(query.tolist(), reference, strict=True))
        if cosine > most_similar:
            dropped += 1
        else:
            found.append((1 - cosine, index))
    found.sort()
    near = [(d, index) for d, index in found if epsilon is None or d <= epsilon][:k]
    return [(math.sqrt(max(0.0, 2 * d)), index) for d, index in near], dropped


@pytest.mark.parametrize("most_similar", [0.6, 0.95, 1.0])
@pytest.mark.parametrize("kind", [{"k": 4}, {"epsilon": 0.5}])
def test_they_are_those_of_a_search_by_hand(kind, most_similar, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 4 * 40 * 3)  # three questions at a time
    queries, references = unit(11, seed=1), unit(40)
    found = neighbours(
        queries, references, k=kind.get("k", 99), epsilon=kind.get("epsilon"), most_similar=most_similar
    )
    sizes = []
    for q, query in enumerate(queries):
        expected, dropped = by_hand(query, references, most_similar, **kind)
        size = len(expected)
        assert found.index_QK[q].tolist()[:size] == [index for _, index in expected]
        assert found.distance_QK[q, :size].tolist() == rounding.approx([d for d, _ in expected])
        assert (found.index_QK[q, size:] == -1).all() and found.distance_QK[q, size:].isinf().all()
        assert found.dropped_Q[q] == dropped
        sizes.append(size)
    assert found.index_QK.shape == (11, max(sizes))
    assert min(sizes) < max(sizes) or "k" in kind, "balls of different sizes are tried"


def test_an_empty_ball_has_no_neighbour():
    found = neighbours(unit(3, seed=1), unit(20), k=3, epsilon=1e-3)
    assert found.index_QK.shape == (3, 0)
    one = unit(1)
    near = torch.nn.functional.normalize(one + 0.4 * unit(1, seed=5), dim=1)
    found = neighbours(torch.cat([one, -one]), near, k=3, epsilon=0.2)
    assert found.index_QK.tolist() == [[0], [-1]]


def test_the_radius_is_a_cosine_distance():
    """cos = 0.8 lies within 0.2, and its distance of unit vectors, which kernels take, is sqrt(0.4) = 0.63."""
    query_QX, reference_RX = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.8, 0.6], [0.6, 0.8]])
    found = neighbours(query_QX, reference_RX, k=3, epsilon=0.21)
    assert found.index_QK.tolist() == [[0]]
    assert found.distance_QK.tolist() == [[pytest.approx(math.sqrt(0.4))]]
    assert neighbours(query_QX, reference_RX, k=3, epsilon=0.19).index_QK.tolist() == [[]]
    assert neighbours(query_QX, reference_RX, k=3, epsilon=0.41).index_QK.tolist() == [[0, 1]]


def test_fewer_references_than_k():
    found = neighbours(unit(2, seed=1), unit(2), k=5, epsilon=None)
    assert found.index_QK.shape == (2, 5)
    assert sorted(found.index_QK[0].tolist()) == [-1, -1, -1, 0, 1]


def test_of_equally_near_references_the_first_comes_first():
    references = unit(1).expand(6, -1)
    found = neighbours(unit(2, seed=1), references, k=4, epsilon=None)
    assert found.index_QK.tolist() == [[0, 1, 2, 3]] * 2


def test_no_question():
    assert neighbours(unit(0), unit(5), k=2, epsilon=None).index_QK.shape == (0, 2)
    assert neighbours(unit(0), unit(5), k=2, epsilon=1.0).index_QK.shape == (0, 0)


@pytest.mark.parametrize("how", [{"k": 2, "epsilon": None}, {"k": 1, "epsilon": 0.72}], ids=str)
def test_a_question_whose_nearest_reference_is_too_far_has_none(how):
    query_QX = torch.eye(3)
    reference_RX = torch.nn.functional.normalize(torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.1, 1.0]]), dim=1)
    near = neighbours(query_QX, reference_RX, most_similar=1.0, **how)
    left, far_Q = near.abstaining(0.6)
    assert far_Q.tolist() == [False, True, False]
    assert (left.index_QK[1] == -1).all() and left.distance_QK[1].isinf().all()
    assert left.index_QK[[0, 2]].equal(near.index_QK[[0, 2]])
    none, far_Q = near.abstaining(None)
    assert none.index_QK.equal(near.index_QK) and not far_Q.any()


def test_a_question_without_neighbours_does_not_abstain():
    near = neighbours(torch.eye(2), torch.eye(2), k=1, epsilon=0.1)
    assert near.abstaining(0.5)[1].tolist() == [False, False]
