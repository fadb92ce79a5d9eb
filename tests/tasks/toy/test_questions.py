"""Breaks when a key belongs to two splits, the corpus asks a held-out question, or an answer is wrong."""

from itertools import combinations

import pytest

from moe_lab.tasks.toy import QUESTIONS
from moe_lab.tasks.toy.corpus import documents
from moe_lab.tasks.toy.questions import instructions, keys, questions, wordings
from moe_lab.tasks.toy.world import PEOPLE, RELATIONS, RULES, facts


def asked(split: str) -> set[str]:
    """Every wording of every question of a split."""
    return {wording.format(s=subject) for subject, path in keys(split) for wording in wordings(path)}


def test_splits_are_disjoint_in_keys_and_in_wording_and_leave_nothing_out():
    for first, second in combinations(QUESTIONS, 2):
        assert not set(keys(first)) & set(keys(second))
        assert not asked(first) & asked(second)
    paths = [(name,) for name in RELATIONS] + list(RULES)
    assert sum(len(keys(split)) for split in QUESTIONS) == sum(
        len(RELATIONS[path[0]].subjects) for path in paths
    )


def test_the_corpus_and_the_instructions_ask_training_questions_only():
    held_out = set().union(*(asked(split) for split in QUESTIONS if split != "train"))
    lines = "\n".join(text for index in range(200) for text in documents(0, index, 10)).split("\n")
    in_corpus = {line.removeprefix("Question: ") for line in lines if line.startswith("Question: ")}
    in_chats = {row["messages"][0]["content"].split("?")[0] + "?" for row in instructions("train", 1000)}
    assert in_corpus & asked("train") and in_chats & asked("train")
    assert not (in_corpus | in_chats) & held_out


@pytest.mark.parametrize("split", QUESTIONS)
def test_the_right_answer_is_the_fact_and_stands_once_among_four(split):
    rows = questions(split, QUESTIONS[split])
    assert len(rows) == QUESTIONS[split] and len({row["question"] for row in rows}) == len(rows)
    by_text = {wording.format(s=key[0]): key for key in keys(split) for wording in wordings(key[1])}
    for row in rows:
        subject, path = by_text[row["question"]]
        for relation in path:
            subject = facts()[relation, subject]
        assert row["choices"][row["answer"]] == subject
        assert len(set(row["choices"])) == 4
        assert row["kind"] == ("recall" if len(path) == 1 else "inference")


def test_near_asks_about_people_as_test_does_and_far_does_not():
    for split, about_people in (("test", True), ("near", True), ("far", False)):
        assert {row["subject"] in PEOPLE for row in questions(split, QUESTIONS[split])} == {about_people}


def test_the_right_answer_stands_at_every_place_about_equally_often():
    """500 fair draws of 4 places: a place outside 85..165 has odds below 1 in 10,000, once."""
    places = [row["answer"] for row in questions("test", 500)]
    assert all(85 <= places.count(place) <= 165 for place in range(4))
