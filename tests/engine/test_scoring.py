"""Scores equal those of one plain forward pass per continuation, however the work
is batched, ordered or repeated."""

import copy
import random
from typing import Any

import pytest
import torch

from moe_lab.engine import scoring
from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.scoring import Budget, ScoringRequest, TokenScores
from moe_lab.errors import RoutingError
from tests.support.ensembles import assert_scores, plain, questions_for, scores_of
from tests.support.models import make_model

BUDGETS = [Budget(4000), Budget(4000, 1), Budget(4000, 3), Budget(70), Budget(7)]


def test_equals_plain_forward_passes(moe_model):
    questions = questions_for(random.Random(0), 7)
    expected = [[plain(moe_model, q, c) for c in q.continuations] for q in questions]
    for budget in BUDGETS:
        assert_scores(scores_of(moe_model, questions, budget)[0], expected)


def test_the_greedy_continuation_is_called_greedy(olmoe):
    context = [1, 2, 3]
    with torch.no_grad():
        best = int(olmoe(torch.tensor([context])).logits[0, -1].argmax())
    scores, _ = scores_of(
        olmoe, [ScoringRequest(context, [[best], [(best + 1) % 256]], 0)], Budget(100)
    )
    assert [greedy for _, greedy in scores[0]] == [True, False]


def test_nothing_is_computed_twice(olmoe):
    # 30 shared tokens once, then for each question the rest of its context,
    # and its choices without their last tokens.
    shared = list(range(30))
    questions = [
        ScoringRequest([*shared, 40 + i, 50 + i], [[1, 2, 3], [1, 2, 4], [7]], i) for i in range(4)
    ]
    _, forward = scores_of(olmoe, questions, Budget(4000))
    assert forward.tokens_in == 30 + 4 * (2 + len([1, 2]))


def test_copies_of_a_shared_beginning_are_bounded(olmoe):
    """12 questions of 2 tokens after 40 shared tokens.

    They once took 12 x 42 slots in a pass, whatever the memory.
    """
    questions = [ScoringRequest([*range(40), 40 + i, 60 + i], [[7]], i) for i in range(12)]
    expected, _ = scores_of(olmoe, questions, Budget(4000))
    sequences = []

    def counted(module, args, kwargs):
        sequences.append(len(kwargs["input_ids"]))

    with olmoe.register_forward_pre_hook(counted, with_kwargs=True):
        scores, _ = scores_of(olmoe, questions, Budget(4000, slots=5 * 42))
    assert sequences == [1, 5, 5, 2]
    assert_scores(scores, expected)


def test_unlike_questions_share_a_pass(olmoe):
    passes = []
    questions = [ScoringRequest([i, i + 1, i + 2], [[5], [6, 7]], i) for i in range(0, 60, 10)]
    with olmoe.register_forward_pre_hook(lambda module, args: passes.append(1)):
        scores_of(olmoe, questions, Budget(4000))
    assert len(passes) == 1


def test_eager_attention_takes_the_same_masks(olmoe):
    questions = questions_for(random.Random(3), 4)
    expected, _ = scores_of(olmoe, questions, Budget(4000))
    eager = copy.deepcopy(olmoe)
    eager.set_attn_implementation("eager")
    scores, _ = scores_of(eager, questions, Budget(4000))
    assert_scores(scores, expected)


def test_scores_of_hopeless_tokens_are_finite():
    logits_MnV = torch.tensor([[[0.0, -400.0], [0.0, -300.0]]])
    score = Ensemble(2).score(logits_MnV, torch.tensor([0]), torch.tensor([1]))
    assert float(score) == pytest.approx(-300 - 0.6931472, abs=1e-4)


def test_nan_is_an_error_not_a_score():
    model = make_model("llama")
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
    with pytest.raises(RoutingError, match="NaN"):
        scores_of(model, questions_for(random.Random(0), 2), Budget(100))


def test_tree_shares_nodes_of_continuations_that_begin_alike():
    row = TokenTree([1, 2, 3], [[7, 8, 9], [7, 8, 5], [7, 1], [4]], cached=1)
    assert row.ids == [2, 3, 7, 8]
    assert row.positions == [1, 2, 3, 4]
    assert row.paths == [[1, 2, 3], [1, 2, 3], [1, 2], [1]]
    assert row.logit_nodes == [1, 2, 3]


TREES = [TokenTree([1, 2], [[3], [3, 4], [5, 4, 0]]), TokenTree([7], [[2, 2]])]
LOGITS = torch.randn(
    sum(len(tree.logit_nodes) for tree in TREES), 3, 8, generator=torch.manual_seed(0)
)


def slow(logits_of):
    """The log-likelihood of each continuation; mean probabilities after a node are known."""
    scores = []
    first = 0
    for tree in TREES:
        place = {node: first + at for at, node in enumerate(tree.logit_nodes)}
        first += len(place)
        scores.append([])
        for path, continuation in zip(tree.paths, tree.continuations, strict=True):
            probs = [logits_of(place[node]).double().softmax(-1).mean(0) for node in path]
            total = sum(float(p[token].log()) for p, token in zip(probs, continuation, strict=True))
            scores[-1].append(
                (total, all(int(p.argmax()) == t for p, t in zip(probs, continuation, strict=True)))
            )
    return scores


def assert_same(scores, expected):
    for scored_tree, expected_tree in zip(scores, expected, strict=True):
        assert scored_tree == [
            (pytest.approx(value, abs=1e-5), greedy) for value, greedy in expected_tree
        ]


def test_parts_in_order():
    scores = TokenScores(TREES).after(Ensemble(n=3), LOGITS.split([1, 3, len(LOGITS) - 4]))
    assert_same(scores.summed(), slow(lambda place: LOGITS[place]))


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_logits_of_many_bytes_are_scored_row_by_row(rows, monkeypatch):
    row_bytes = 4 * LOGITS[0].numel()
    monkeypatch.setattr(scoring, "SCORED_BYTES", rows * row_bytes)
    row_counts = []
    score = Ensemble.score

    def counted(self: Ensemble, logits: torch.Tensor, *arguments: Any) -> torch.Tensor:
        row_counts.append(len(logits))
        return score(self, logits, *arguments)

    monkeypatch.setattr(Ensemble, "score", counted)
    assert_same(
        TokenScores(TREES).after(Ensemble(n=3), [LOGITS]).summed(),
        slow(lambda place: LOGITS[place]),
    )
    assert max(row_counts) == max(1, rows)


def test_nodes_with_other_numbers_of_samples():
    """First, no node has noise. Then some nodes get three samples, in another order, and one
    node of each tree gets two."""
    plain = TokenScores(TREES)
    plain.put(Ensemble(), torch.arange(len(LOGITS)), LOGITS[:, :1])
    scores = TokenScores(TREES, plain.by_tree())
    three = torch.tensor([3, 1])
    two = torch.tensor([0, len(LOGITS) - 1])
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
