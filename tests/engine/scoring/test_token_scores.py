"""Scores of tokens that are put in out of order, in parts of several ensembles, and replaced."""

from __future__ import annotations

import pytest
import torch

from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.scoring.token_scores import TokenScores, read_scores
from moe_lab.errors import RoutingError

TREES = [TokenTree([1, 2], [[3], [3, 4], [5, 4, 0]]), TokenTree([7], [[2, 2]])]
LOGITS = torch.randn(sum(len(tree.logit_nodes) for tree in TREES), 3, 8, generator=torch.manual_seed(0))


def slow(logits_of):
    """The log-likelihood of each continuation, where the mean probabilities after a node are known."""
    scores, first = [], 0
    for tree in TREES:
        place = {node: first + at for at, node in enumerate(tree.logit_nodes)}
        first += len(place)
        scores.append([])
        for path, own in zip(tree.paths, tree.continuations, strict=True):
            probs = [logits_of(place[node]).double().softmax(-1).mean(0) for node in path]
            total = sum(float(p[token].log()) for p, token in zip(probs, own, strict=True))
            scores[-1].append((total, all(int(p.argmax()) == t for p, t in zip(probs, own, strict=True))))
    return scores


def assert_same(found, expected):
    for own, other in zip(found, expected, strict=True):
        assert [value for value, _ in own] == pytest.approx([value for value, _ in other], abs=1e-5)
        assert [greedy for _, greedy in own] == [greedy for _, greedy in other]


def test_parts_in_order():
    found = read_scores(Ensemble(n=3), TREES, LOGITS.split([1, 3, len(LOGITS) - 4]))
    assert_same(found, slow(lambda place: LOGITS[place]))


def test_nodes_with_other_numbers_of_samples():
    """All nodes are plain at first; then some get three samples, in another order, and one of each tree two."""
    plain = TokenScores(TREES)
    plain.put(Ensemble(), torch.arange(len(LOGITS)), LOGITS[:, :1])
    scores = TokenScores(TREES, plain.by_tree())
    three, two = torch.tensor([3, 1]), torch.tensor([0, len(LOGITS) - 1])
    scores.put(Ensemble(n=3), three, LOGITS[three])
    scores.put(Ensemble(n=2), two, LOGITS[two, :2])
    samples = {3: 3, 1: 3, 0: 2, len(LOGITS) - 1: 2}
    assert_same(scores.summed(), slow(lambda place: LOGITS[place, : samples.get(place, 1)]))
    assert_same(plain.summed(), slow(lambda place: LOGITS[place, :1]))


def test_a_node_that_is_missing_is_an_error():
    scores = TokenScores(TREES)
    scores.put(Ensemble(), torch.tensor([0]), LOGITS[:1, :1])
    with pytest.raises(RoutingError, match="NaN"):
        scores.summed()
