"""How an answer on a page differs from the base model's, or whether it is right."""

from collections.abc import Sequence
from typing import Any

from moe_lab.reports.pages.answers import Answer

TO_RIGHT, TO_WRONG = "wrong to right", "right to wrong"
STILL_RIGHT, STILL_WRONG = "right, with another answer", "wrong, with another answer"
CHANGED = "changed"
CHANGES = (TO_RIGHT, TO_WRONG, STILL_RIGHT, STILL_WRONG, CHANGED)
"""Kinds of answers that differ from the base model's."""
SAME_RIGHT, SAME_WRONG, UNCHANGED = "right, unchanged", "wrong, unchanged", "unchanged"
RIGHT, WRONG, ANSWERED = "right", "wrong", "answered"
ALONE = (WRONG, RIGHT, ANSWERED)
"""Kinds of runs without a base model."""
KINDS = (*CHANGES, SAME_WRONG, SAME_RIGHT, UNCHANGED, *ALONE)
"""All kinds, in the order of a page. CHANGED, UNCHANGED and ANSWERED are of scores that are not 0
or 1."""


def kind_alone(is_right: bool | None) -> str:
    """The kind of an answer that has no answer of the base model next to it.

    Args:
        is_right: None for a score that is not 0 or 1.
    """
    if is_right is None:
        return ANSWERED
    return RIGHT if is_right else WRONG


def kind_of_pair(
    answers: Sequence[Answer], scores: Sequence[Any], rights: Sequence[bool | None]
) -> str:
    """The kind of a run's answer next to the base model's.

    Args:
        answers: the base model's, then the run's own.
        scores: their values of the metric.
        rights: whether they are right; None for a score that is not 0 or 1.
    """
    base_answer, own_answer = answers
    base_score, own_score = scores
    # tuples, in which a missing value (NaN) of both answers is the same
    base_content = (base_answer.text, base_answer.picked, base_score)
    own_content = (own_answer.text, own_answer.picked, own_score)
    is_same = base_content == own_content

    base_is_right, own_is_right = rights
    if base_is_right is None or own_is_right is None:
        return UNCHANGED if is_same else CHANGED
    if base_is_right != own_is_right:
        return TO_RIGHT if own_is_right else TO_WRONG
    if is_same:
        return SAME_RIGHT if own_is_right else SAME_WRONG
    return STILL_RIGHT if own_is_right else STILL_WRONG
