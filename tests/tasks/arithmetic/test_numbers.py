"""Breaks if a right answer is read as another number, or if a wrong one passes."""

from __future__ import annotations

import pytest

from moe_lab.tasks.arithmetic.numbers import answer_number, extract_answers, same_number, score


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 5 apples, not 6", "5"),
        ("First #### 3, no: #### 4", "4"),
        ("#### none, so 12", "12"),
        ("The answer is 1,234.", "1234"),
        ("It costs $1,234,567.50.", "1234567.50"),
        ("He has 12 apples.", "12"),
        ("so -7", "-7"),
        ("10-7", "7"),
        ("10 - 7 = 3.", "3"),
        ("It is 0.5", "0.5"),
        ("It is .5", ".5"),
        ("1, 2, 3", "3"),
        ("12,34", "34"),
        ("about 45%", "45"),
        ("no number", ""),
        ("", ""),
    ],
)
def test_answer_number(text: str, number: str) -> None:
    assert answer_number(text) == number


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("15.0", "15", True),
        ("15", "15.0", True),
        ("0.6666667", "0.6666666666666666", True),
        ("0.667", "0.6666666666666666", False),
        ("1000000.5", "1,000,000", True),  # 5e-7 relative
        ("1000002", "1000000", False),
        ("", "15", False),
        ("16", "15", False),
        ("-15", "15", False),
        ("0", "0.0", True),
    ],
)
def test_same_number(answer: str, gold: str, same: bool) -> None:
    assert same_number(answer, gold) is same


def test_score_reads_the_filtered_answer() -> None:
    filtered = extract_answers([["He has 4 + 3 = 7 pens.\n#### 7"], ["I think 8"]], [{}, {}])
    assert filtered == [["7"], ["8"]]
    assert score({"answer": "7.0"}, filtered[0]) == {"exact_match": 1.0}
    assert score({"answer": "7.0"}, filtered[1]) == {"exact_match": 0.0}
