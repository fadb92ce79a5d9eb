"""States of cells. Broken by a number of the toy world that is said to agree with a paper, and by an empty cell that
gives no reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe_lab.reports.pages.record import (
    AGREES,
    DISAGREES,
    FAILED,
    NOT_COMPARABLE,
    NOT_PUBLISHED,
    NOT_RUN,
    CellRecord,
    state_of,
)
from moe_lab.reports.papers.experiment import Published
from moe_lab.results.scores import Score

PUBLISHED = Published(cell={}, value=0.5, place="Table 9")
SCORE = Score(model="", method="", task="", metric="", run_id="", value=0.52, interval=(0.48, 0.56))


@pytest.mark.parametrize(
    "scale, score, published, problem, state",
    [
        ("paper", SCORE, PUBLISHED, None, AGREES),
        ("paper", SCORE, replace(PUBLISHED, value=0.57), None, DISAGREES),
        ("paper", replace(SCORE, marks=("PARTIAL",)), PUBLISHED, None, NOT_COMPARABLE),
        ("paper", replace(SCORE, interval=None), PUBLISHED, None, NOT_COMPARABLE),
        ("tiny", SCORE, PUBLISHED, None, NOT_COMPARABLE),
        ("tiny", SCORE, None, None, NOT_PUBLISHED),
        ("paper", None, PUBLISHED, "no GPU", FAILED),
        ("paper", replace(SCORE, value=None), PUBLISHED, None, FAILED),
        ("paper", None, PUBLISHED, None, NOT_RUN),
    ],
)
def test_states(scale, score, published, problem, state):
    cell = CellRecord(coordinates={}, score=score, published=published, problem=problem)
    found, reason = state_of(cell, scale)
    assert found == state
    assert reason or state in (AGREES, DISAGREES, NOT_PUBLISHED)
    assert problem is None or reason == problem


def test_an_incomplete_average_says_so():
    cell = CellRecord(coordinates={}, published=PUBLISHED, average=True)
    assert state_of(cell, "paper") == (NOT_RUN, "not all cells of the average are measured")


def test_a_stated_number_says_why_it_is_not_measured():
    cell = CellRecord(coordinates={}, published=PUBLISHED, absent="no power meter")
    assert state_of(cell, "paper") == (NOT_RUN, "no power meter")
