"""Differences of a score over seeds.

Broken by a test of a score that has none, by rounding that is counted as a difference,
and by an interval that is not that of crossed seeds and documents.
"""

import math
from functools import partial

import numpy as np
import pytest
from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
from scipy.stats import t

from moe_lab.results.rounding import Rounding
from moe_lab.results.seed_summary import SeedDifference
from moe_lab.runs.seed_scores import TaskScores, difference_of


def difference_to(
    base_score: float,
    base_values: list,
    seed_scores: list[float],
    seed_values: list[list],
    *,
    aggregate=None,
    words: int,
) -> SeedDifference:
    """The difference of seeds to a base run.

    Values are by document; each document has `words` scored words.
    """
    base = TaskScores({"m": base_score}, {"m": dict(enumerate(base_values))})
    near = partial(Rounding("float32").equal_examples, words=[words] * len(base_values))
    return difference_of(seed_scores, seed_values, [base], "m", aggregate, near)


def test_a_perplexity_is_tested_by_its_log_likelihoods():
    base = [(-9.0 - document % 7, 5) for document in range(40)]
    seeds = []
    for seed in range(5):
        seeds.append([(log + 1 + seed / 10, words) for log, words in base])
    scores = [weighted_perplexity(values) for values in seeds]
    base_score = weighted_perplexity(base)

    difference = difference_to(
        base_score, base, scores, seeds, aggregate=weighted_perplexity, words=1
    )

    assert difference.difference == pytest.approx(sum(scores) / 5 - base_score)
    assert difference.difference < 0
    assert difference.p_documents is not None
    assert difference.p_documents < 0.01
    assert "difference_p_both" in difference.to_json()


def test_a_score_that_is_neither_a_mean_nor_of_log_likelihoods_is_not_tested():
    base = [-9.0 - document % 7 for document in range(40)]
    seeds = []
    for seed in range(5):
        seeds.append([log + 1 + seed / 10 for log in base])
    scores = [0.0, 1.0, 2.0, 3.0, 4.0]

    difference = difference_to(0.0, base, scores, seeds, aggregate=max, words=1)

    assert difference.difference == pytest.approx(2.0)
    assert difference.p_documents is None
    assert "difference_p_both" not in difference.to_json()


def test_documents_that_rounding_moved_are_ties():
    """Two of 40 documents really changed; the others by rounding, all in one direction."""
    base = [-9.0 - document for document in range(40)]
    changed = [log + 1.0 for log in base[:2]] + [log + 1e-6 for log in base[2:]]
    score = float(np.mean(changed))

    difference = difference_to(
        float(np.mean(base)), base, [score, score], [changed, changed], words=9
    )

    assert not difference.equal
    assert difference.p_documents is not None
    assert difference.p_documents > 0.2


def test_runs_that_differ_by_rounding_alone_are_equal():
    base = [-9.0 - document for document in range(40)]
    rounded = [log + 1e-6 for log in base]
    score = float(np.mean(rounded))

    difference = difference_to(
        float(np.mean(base)), base, [score, score], [rounded, rounded], words=9
    )

    assert difference.equal
    assert difference.p_documents is None


def crossed_interval(values_SN: list[list[float]]) -> tuple[float, float]:
    """The interval of `over_seeds.crossed_mean`, by loops over seeds and documents."""
    seeds = len(values_SN)
    documents = len(values_SN[0])
    mean_of_seed = [math.fsum(row) / documents for row in values_SN]
    mean_of_document = []
    for document in range(documents):
        mean_of_document.append(math.fsum(row[document] for row in values_SN) / seeds)
    mean = math.fsum(math.fsum(row) for row in values_SN) / (seeds * documents)

    squares_of_seeds = math.fsum((seed_mean - mean) ** 2 for seed_mean in mean_of_seed)
    squares_of_documents = math.fsum(
        (document_mean - mean) ** 2 for document_mean in mean_of_document
    )
    rests = []
    for seed, row in enumerate(values_SN):
        for document, value in enumerate(row):
            rests.append((value - mean_of_seed[seed] - mean_of_document[document] + mean) ** 2)

    seed_freedom = seeds - 1
    document_freedom = documents - 1
    rest_freedom = seed_freedom * document_freedom
    rest_part = math.fsum(rests) / rest_freedom
    seed_part = max(documents * squares_of_seeds / seed_freedom, rest_part)
    document_part = max(seeds * squares_of_documents / document_freedom, rest_part)

    # Satterthwaite's degrees of freedom of a sum of mean squares
    total = seed_part + document_part - rest_part
    degrees = total**2 / (
        seed_part**2 / seed_freedom
        + document_part**2 / document_freedom
        + rest_part**2 / rest_freedom
    )
    half = float(t.ppf(0.975, degrees)) * math.sqrt(total / (seeds * documents))
    return mean - half, mean + half


@pytest.mark.parametrize(
    ("seed_values", "other_seed_values", "base"),
    [
        # as many documents become right as become wrong
        pytest.param(
            [1.0, 0.0, 1.0, 0.0, 1.0],
            [0.0, 0.0, 1.0, 1.0, 1.0],
            [0.0, 1.0, 1.0, 0.0, 1.0],
            id="accuracy",
        ),
        # sums of tenths, whose differences cancel but for their last bits
        pytest.param(
            [0.3, 0.7, 0.1, 0.6, 0.2],
            [0.7, 0.1, 0.6, 0.2, 0.3],
            [0.1, 0.2, 0.3, 0.6, 0.7],
            id="tenths",
        ),
    ],
)
def test_a_difference_of_five_seeds_that_cancels_is_0_with_the_interval_of_its_test(
    seed_values, other_seed_values, base
):
    seeds = [seed_values, other_seed_values, seed_values, other_seed_values, seed_values]
    scores = [float(np.mean(values)) for values in seeds]

    difference = difference_to(float(np.mean(base)), base, scores, seeds, words=9)

    differences_SN = (np.array(seeds) - np.array(base)).tolist()
    assert difference.difference == 0.0
    assert difference.p_both == pytest.approx(1.0)
    assert difference.both_interval == pytest.approx(crossed_interval(differences_SN), abs=1e-12)


def test_bits_per_byte_have_the_interval_of_their_log_likelihoods():
    random = np.random.default_rng(0)
    lengths = [4, 9, 5, 7, 6, 8]
    base_logs = [-5.0 - document for document in range(6)]
    seed_logs = []
    for _ in range(5):
        seed_logs.append([log + random.normal(0.5, 0.2) for log in base_logs])
    base = list(zip(base_logs, lengths, strict=True))
    seeds = [list(zip(logs, lengths, strict=True)) for logs in seed_logs]
    scores = [bits_per_byte(values) for values in seeds]

    difference = difference_to(
        bits_per_byte(base), base, scores, seeds, aggregate=bits_per_byte, words=1
    )

    # bits of a document, so that their mean over documents is the difference of the scores
    scale = -len(lengths) / (sum(lengths) * math.log(2))
    bits_SN = (scale * (np.array(seed_logs) - np.array(base_logs))).tolist()
    low, high = crossed_interval(bits_SN)
    assert difference.both_interval == pytest.approx((low, high), abs=1e-12)
    assert difference.difference == pytest.approx((low + high) / 2, abs=1e-12)
