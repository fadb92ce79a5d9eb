"""Gains by confidence. Broken by a question in the wrong group, or one that counts twice."""

from __future__ import annotations

import math
import random

import pytest

from moe_lab.reports.pages.answers import GROUPS, Answer, Paired, by_confidence, confidence


def test_confidence_is_the_probability_among_the_choices():
    answer = Answer("?", None, ("a", "b", "c"), (-1000.0, -1001.0, -1002.0), 1)
    assert confidence(answer) == pytest.approx(math.exp(-1) / (1 + math.exp(-1) + math.exp(-2)))
    assert confidence(Answer("?", "text")) is None
    assert confidence(Answer("?", None, ("a", "b"), (-math.inf, -math.inf), 0)) is None


def test_groups_hold_each_question_once():
    random.seed(1)
    pairs = [Paired(random.random(), random.random() < 0.5, random.random() < 0.7) for _ in range(42)]
    groups = by_confidence(pairs)
    assert len(groups) == GROUPS and sum(group.n for group in groups) == 42
    for group in groups:
        own = [pair for pair in pairs if group.low <= pair.confidence <= group.high]
        assert len(own) == group.n
        assert group.base == sum(pair.before for pair in own) / group.n
        gain = sum(pair.after - pair.before for pair in own) / group.n
        assert group.gain == pytest.approx(gain) and group.interval[0] <= gain <= group.interval[1]
        assert group.flips[0] == sum((not pair.before) and pair.after for pair in own)
    assert [group.low for group in groups] == sorted(group.low for group in groups)


def test_few_questions_have_no_groups():
    assert by_confidence([Paired(0.5, True, True)] * 19) == []
    assert len(by_confidence([Paired(0.5, True, True)] * 20)) == GROUPS
