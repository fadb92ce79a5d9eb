"""ECE and AUROC of confidence: their definitions, and intervals that hold a known truth.

Broken by: a bin without its upper limit, a tie that counts as won, answers of one document taken
for documents, an interval of a calibrated model that leaves out 0, runs that are not resampled
together, an AUROC of answers that are all right.
"""

from functools import partial

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from moe_lab.results import statistics
from moe_lab.results.confidence import (
    BINS,
    Answers,
    auroc,
    calibration_error,
    difference_of_aurocs,
    difference_of_errors,
    error_if_calibrated,
    reliability,
)

SIZES = [(150, 1), (150, 3), (400, 1)]
"""(documents, answers to each)"""


def ece_by_loop(confidence, right, document):
    """The textbook's loop over bins, each document with a weight of 1."""
    documents = max(document) + 1
    error = 0.0
    for number in range(BINS):
        total = 0.0
        for c, r, d in zip(confidence, right, document, strict=True):
            is_last = number == BINS - 1 and c == 1.0
            if number / BINS <= c < (number + 1) / BINS or is_last:
                total += (r - c) / document.count(d)
        error += abs(total / documents)
    return error


def auroc_by_loop(confidence, right, document):
    """Over all pairs of a right and a wrong answer, weighted by their documents."""
    won = 0.0
    pairs = 0.0
    for c, r, d in zip(confidence, right, document, strict=True):
        for other_c, other_r, other_d in zip(confidence, right, document, strict=True):
            if r == 1 and other_r == 0:
                weight = 1 / (document.count(d) * document.count(other_d))
                pairs += weight
                won += weight * ((c > other_c) + 0.5 * (c == other_c))
    return won / pairs


@pytest.mark.parametrize("answers_per_document", [1, 3])
def test_both_are_those_of_a_loop(answers_per_document):
    random = np.random.default_rng(0)
    document = [*range(30)] * answers_per_document
    document += [0, 0, 7]  # documents may have different numbers of answers
    confidence = (random.integers(0, 21, len(document)) / 20).tolist()
    right = random.integers(0, 2, len(document)).tolist()
    answers = Answers.of(confidence, right, document)
    expected = ece_by_loop(confidence, right, document)
    assert calibration_error(answers).value == pytest.approx(expected)
    expected = auroc_by_loop(confidence, right, document)
    assert auroc(answers).value == pytest.approx(expected)
    lines = reliability(answers)
    assert sum(line["share"] for line in lines) == pytest.approx(1)
    gaps = [line["share"] * abs(line["accuracy"] - line["confidence"]) for line in lines]
    assert sum(gaps) == pytest.approx(calibration_error(answers).value)


def test_auroc_is_that_of_scikit_learn():
    random = np.random.default_rng(1)
    confidence = random.random(200).round(1)
    right = random.random(200) < confidence
    answers = Answers.of(confidence, right, range(200))
    assert auroc(answers).value == pytest.approx(roc_auc_score(right, confidence))


def test_where_there_is_nothing_to_tell_apart():
    confidence = [0.2, 0.5, 0.9]
    for right in ([1, 1, 1], [0, 0, 0]):
        answers = Answers.of(confidence, right, range(3))
        assert auroc(answers).value is None
        assert difference_of_aurocs(answers, answers).difference is None
    separated = Answers.of(confidence, [0, 0, 1], range(3))
    assert auroc(separated).value == 1.0
    assert auroc(separated).interval is None
    single = Answers.of([0.75], [1], [0])
    assert calibration_error(single).value == pytest.approx(0.25)
    assert calibration_error(single).interval is None


def test_the_error_if_calibrated_is_that_of_simulated_answers():
    random = np.random.default_rng(2)
    confidence = random.beta(4, 2, 300)
    errors = []
    for _ in range(300):
        right = random.random(300) < confidence
        errors.append(calibration_error_alone(Answers.of(confidence, right, range(300))))
    answers = Answers.of(confidence, confidence > 0.5, range(300))
    assert error_if_calibrated(answers) == pytest.approx(np.mean(errors), rel=0.05)


def calibration_error_alone(answers):
    error = answers.weight_A * (answers.right_A - answers.confidence_A)
    return np.abs(np.bincount(answers.bin_A, error)).sum() / answers.documents


# Simulated experiments. A model's confidence c is drawn, and its answer is right with a probability
# of `truth(c)`.

TRUTHS = {
    "far overconfident": lambda c: np.clip(c - 0.4, 0.05, 1),
    "overconfident": lambda c: np.clip(c - 0.15, 0, 1),
    "slightly overconfident": lambda c: 0.03 + 0.92 * c,
    "bent": lambda c: c**2,
    "calibrated": lambda c: c,
}


def drawn(random, n):
    return random.beta(4, 2, n)


def true_error(truth):
    confidence = drawn(np.random.default_rng(123), 2_000_000)
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return np.abs(np.bincount(bins, truth(confidence) - confidence)).sum() / len(confidence)


def true_auroc(truth):
    confidence = np.sort(drawn(np.random.default_rng(123), 2_000_000))
    right = truth(confidence)
    wrong_below = (1 - right).cumsum() - (1 - right) / 2
    return float((right * wrong_below).sum() / (right.sum() * (1 - right).sum()))


def experiment(random, n, truth, per_document):
    """Answers of which those of one document are alike: a shared difficulty."""
    document = np.repeat(np.arange(n), per_document)
    confidence = drawn(random, n)[document]
    # one uniform number of half of the documents decides about all of their answers
    alike = (random.random(n) < 0.5)[document]
    shared = random.random(n)[document]
    own = random.random(len(document))
    right = np.where(alike, shared, own) < truth(confidence)
    return Answers.of(confidence, right, document)


@pytest.fixture
def fewer_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", statistics.RESAMPLES // 10)


def coverage(measure, truth, times):
    covered = 0
    for number in range(times):
        low, high = measure(np.random.default_rng(number)).interval
        covered += low <= truth <= high
    return covered / times


def slack(times):
    """Three standard errors of a coverage of 95%."""
    return 3 * (0.95 * 0.05 / times) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("n", "per_document"), SIZES)
@pytest.mark.parametrize("name", TRUTHS)
def test_intervals_of_the_calibration_error_cover(name, n, per_document, fewer_resamples):
    """In 95% where no bin is near 0, and in more where some are."""
    truth = TRUTHS[name]

    def measure(random):
        return calibration_error(experiment(random, n, truth, per_document))

    covered = coverage(measure, true_error(truth), 1000)
    assert covered >= 0.95 - slack(1000)
    if name == "far overconfident" and n == 400:
        assert covered <= 0.95 + slack(1000)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "per_document"), SIZES)
@pytest.mark.parametrize("name", ["overconfident", "bent"])
def test_intervals_of_the_auroc_cover(name, n, per_document, fewer_resamples):
    truth = TRUTHS[name]

    def measure(random):
        return auroc(experiment(random, n, truth, per_document))

    covered = coverage(measure, true_auroc(truth), 1000)
    assert covered == pytest.approx(0.95, abs=slack(1000))


def pair(random, n, truth, other_truth):
    """Two runs on the same documents, of which the second answers most as the first does."""
    confidence = drawn(random, n)
    other_confidence = np.where(random.random(n) < 0.3, drawn(random, n), confidence)
    luck = random.random(n)
    answers = Answers.of(confidence, luck < truth(confidence), range(n))
    others = Answers.of(other_confidence, luck < other_truth(other_confidence), range(n))
    return answers, others


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other"),
    [("overconfident", "calibrated"), ("bent", "bent"), ("calibrated", "calibrated")],
)
def test_intervals_of_differences_cover(name, other, fewer_resamples):
    truth = TRUTHS[name]
    other_truth = TRUTHS[other]
    draw = partial(pair, n=200, truth=truth, other_truth=other_truth)
    error = true_error(truth) - true_error(other_truth)
    area = true_auroc(truth) - true_auroc(other_truth)
    covered = coverage(lambda random: difference_of_errors(*draw(random)), error, 500)
    assert covered >= 0.95 - slack(500)
    covered = coverage(lambda random: difference_of_aurocs(*draw(random)), area, 500)
    assert covered == pytest.approx(0.95, abs=slack(500))


def test_a_difference_is_narrower_than_its_runs_are_apart(fewer_resamples):
    """Runs that agree on most documents are resampled together."""
    truth = TRUTHS["overconfident"]
    answers, others = pair(np.random.default_rng(0), 500, truth, truth)
    together = difference_of_aurocs(answers, others).interval
    low, high = auroc(answers).interval
    assert together[1] - together[0] < high - low
