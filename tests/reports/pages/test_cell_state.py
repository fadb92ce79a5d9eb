"""States of cells. Broken by a number of the toy world that is said to agree with a paper, and by an empty cell that
gives no reason."""

from __future__ import annotations

import pytest

from moe_lab.reports.pages.record import (
    AGREES,
    DISAGREES,
    FAILED,
    NOT_COMPARABLE,
    NOT_PUBLISHED,
    NOT_RUN,
    state_of,
)

PUBLISHED = {"fraction": 0.5, "mark": None}
SCORE = {"value": 0.52, "interval": [0.48, 0.56], "marks": []}


@pytest.mark.parametrize(
    "scale, score, published, problem, state",
    [
        ("paper", SCORE, PUBLISHED, None, AGREES),
        ("paper", SCORE, PUBLISHED | {"fraction": 0.57}, None, DISAGREES),
        ("paper", SCORE | {"marks": ["PARTIAL"]}, PUBLISHED, None, NOT_COMPARABLE),
        ("paper", SCORE | {"interval": None}, PUBLISHED, None, NOT_COMPARABLE),
        ("tiny", SCORE, PUBLISHED, None, NOT_COMPARABLE),
        ("tiny", SCORE, None, None, NOT_PUBLISHED),
        ("paper", None, PUBLISHED, "no GPU", FAILED),
        ("paper", SCORE | {"value": None}, PUBLISHED, None, FAILED),
        ("paper", None, PUBLISHED, None, NOT_RUN),
    ],
)
def test_states(scale, score, published, problem, state):
    cell = {"score": score, "published": published, "problem": problem, "average": False}
    found, reason = state_of(cell, scale)
    assert found == state
    assert reason or state in (AGREES, DISAGREES, NOT_PUBLISHED)
    assert problem is None or reason == problem


def test_an_incomplete_average_says_so():
    cell = {"score": None, "published": PUBLISHED, "problem": None, "average": True}
    assert state_of(cell, "paper") == (NOT_RUN, "not all cells of the average are measured")


def test_a_stated_number_says_why_it_is_not_measured():
    cell = {
        "score": None,
        "published": PUBLISHED,
        "problem": None,
        "average": False,
        "absent": "no power meter",
    }
    assert state_of(cell, "paper") == (NOT_RUN, "no power meter")
