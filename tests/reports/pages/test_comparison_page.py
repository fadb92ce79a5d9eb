"""The page of a comparison. Broken by a number that is not that of comparison.json, and by a flip that is lost."""

import json
from dataclasses import replace

import pytest

from moe_lab.reports.pages.comparison_page import write_comparison_page
from moe_lab.results.comparisons.comparison import compare
from moe_lab.results.marks import MARKS
from tests.support.lm_eval_logs import evaluation, samples_of
from tests.support.pages import HOSTILE, foreign_urls, texts, tree

ZEROS, ONES = samples_of(acc=[0.0] * 12), samples_of(acc=[1.0] * 12)
HALF = samples_of(acc=[0.0, 1.0] * 6)


@pytest.fixture
def comparison(tmp_path):
    made = compare(
        [
            evaluation(tmp_path, key, {"t": lines})
            for key, lines in (("a", HALF), ("b1", ONES), ("b2", ZEROS))
        ]
    )
    return replace(made, evaluations=[replace(one, settings=HOSTILE) for one in made.evaluations])


def test_sentences_and_changed_answers(comparison, tmp_path):
    page = write_comparison_page(comparison, tmp_path / "comparison.html")
    root = tree(page)
    first, second = texts(root.xpath("//ul[@class='verdicts']/li"))
    assert first.startswith(
        "model (b1) on t does not differ significantly from a: acc,none +0.5000"
    )
    assert first.endswith("p 0.031, 0.062 by Holm; changed answers +6 -0.") and "+0 -6" in second
    answers = json.loads(root.xpath("//script[@id='answer-data']/text()")[0])["answers"]
    assert [(each["document"], each["kind"]) for each in answers] == [
        (i, "wrong to right") for i in range(0, 12, 2)
    ] + [(i, "right to wrong") for i in range(1, 12, 2)]
    assert (
        answers[0]["base"] == "answer {'acc': 0.0}" and answers[0]["own"] == "answer {'acc': 1.0}"
    )
    assert (
        len(root.xpath("//script")) == 2
        and not root.xpath("//*[@onerror]")
        and foreign_urls(page) == []
    )


def test_a_comparison_without_changed_answers(tmp_path):
    made = compare(
        [replace(evaluation(tmp_path, key, {"t": ONES}), marks=("PARTIAL",)) for key in "ab"]
    )
    root = tree(write_comparison_page(made, tmp_path / "comparison.html"))
    assert "No document is right in one evaluation and wrong in another." in root.text_content()
    [lead] = texts(root.xpath("//p[contains(@class, 'lead')]"))
    assert lead.startswith("model (b) on t does not differ significantly from a: acc,none +0.0000")
    assert MARKS["PARTIAL"] in texts(root.xpath("//p"))
