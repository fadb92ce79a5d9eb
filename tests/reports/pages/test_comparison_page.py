"""The page of a comparison.

Broken by a number that is not that of comparison.json, and by a changed answer that is lost.
"""

import json
from dataclasses import replace

import pytest

from moe_lab.reports.pages.comparison_page import write_comparison_page
from moe_lab.results.comparisons.comparison import compare
from moe_lab.results.marks import MARKS
from tests.support.lm_eval_logs import evaluation, samples_of
from tests.support.pages import HOSTILE, foreign_urls, texts, tree

ZEROS = samples_of(acc=[0.0] * 12)
ONES = samples_of(acc=[1.0] * 12)
EVERY_OTHER = samples_of(acc=[0.0, 1.0] * 6)


@pytest.fixture
def comparison(tmp_path):
    """Of b1 and b2 with a, whose documents 1, 3, ... 11 are right.

    The settings are hostile texts.
    """
    evaluations = [
        evaluation(tmp_path, "a", {"t": EVERY_OTHER}),
        evaluation(tmp_path, "b1", {"t": ONES}),
        evaluation(tmp_path, "b2", {"t": ZEROS}),
    ]
    compared = compare(evaluations)
    hostile = [replace(evaluation, settings=HOSTILE) for evaluation in compared.evaluations]
    return replace(compared, evaluations=hostile)


def test_sentences(comparison, tmp_path):
    root = tree(write_comparison_page(comparison, tmp_path / "comparison.html"))
    first, second = texts(root.xpath("//ul[@class='verdicts']/li"))
    assert first.startswith(
        "model (b1) on t does not differ significantly from a: acc,none +0.5000"
    )
    assert first.endswith("p 0.031, 0.062 by Holm; changed answers +6 -0.")
    assert "+0 -6" in second


def test_changed_answers(comparison, tmp_path):
    root = tree(write_comparison_page(comparison, tmp_path / "comparison.html"))
    [text] = root.xpath("//script[@id='answer-data']/text()")
    answers = json.loads(text)["answers"]
    kinds = [(answer["document"], answer["kind"]) for answer in answers]
    assert kinds[:6] == [(document, "wrong to right") for document in (0, 2, 4, 6, 8, 10)]
    assert kinds[6:] == [(document, "right to wrong") for document in (1, 3, 5, 7, 9, 11)]
    assert answers[0]["base"] == "answer {'acc': 0.0}"
    assert answers[0]["own"] == "answer {'acc': 1.0}"


def test_hostile_texts_stay_texts(comparison, tmp_path):
    page = write_comparison_page(comparison, tmp_path / "comparison.html")
    root = tree(page)
    assert len(root.xpath("//script")) == 2
    assert root.xpath("//*[@onerror]") == []
    assert foreign_urls(page) == []


def test_a_comparison_without_changed_answers(tmp_path):
    evaluations = []
    for key in ("a", "b"):
        partial = replace(evaluation(tmp_path, key, {"t": ONES}), marks=("PARTIAL",))
        evaluations.append(partial)
    root = tree(write_comparison_page(compare(evaluations), tmp_path / "comparison.html"))
    assert "No document is right in one evaluation and wrong in another." in root.text_content()
    [lead] = texts(root.xpath("//p[contains(@class, 'lead')]"))
    assert lead.startswith("model (b) on t does not differ significantly from a: acc,none +0.0000")
    assert MARKS["PARTIAL"] in texts(root.xpath("//p"))
