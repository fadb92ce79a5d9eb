"""Broken by: a wrong answer, a pair of numbers in two splits, or a question that the training corpus has as well."""

from __future__ import annotations

import re
from itertools import combinations

from moe_lab.methods.conversations.read import TOY_SIZES
from moe_lab.tasks.toy.corpus import documents
from moe_lab.tasks.toy.datasets import DIFFERENCES
from moe_lab.tasks.toy.differences import LEAST, MOST, conversations, differences, pairs

SPLITS = tuple(DIFFERENCES)


def numbers(row) -> tuple[int, int]:
    first, second = map(int, re.findall(r"\d+", row["question"]))
    return first, second


def test_every_answer_is_the_absolute_difference_of_the_numbers_in_its_question():
    for split, count in DIFFERENCES.items():
        rows = differences(split, count)
        assert len(rows) == count
        for row in rows:
            a, b = numbers(row)
            assert LEAST <= min(a, b) and max(a, b) <= MOST and a != b
            assert row["answer"] == f"{max(a, b)} - {min(a, b)} = {abs(a - b)}"
        larger_first = sum(a > b for a, b in map(numbers, rows)) / count
        assert 0.4 < larger_first < 0.6, "the order of the numbers must not tell which one is larger"


def test_splits_share_no_pair_in_either_order():
    drawn = {split: {frozenset(numbers(row)) for row in differences(split, 10_000)} for split in SPLITS}
    assert all(not drawn[first] & drawn[second] for first, second in combinations(SPLITS, 2))
    assert sum(map(len, drawn.values())) == len(list(combinations(range(LEAST, MOST + 1), 2)))


def test_a_pair_is_asked_once_in_an_evaluation_and_in_both_orders_in_training():
    for split in ("test", "validation"):
        assert (
            len({frozenset(numbers(row)) for row in differences(split, DIFFERENCES[split])})
            == DIFFERENCES[split]
        )
    assert DIFFERENCES["train"] == TOY_SIZES["toy_subtract"] == 2 * len(pairs("train"))
    train = {numbers(row) for row in differences("train", DIFFERENCES["train"])}
    assert len(train) == DIFFERENCES["train"]


def test_the_training_corpus_has_no_such_question_and_subtracts_no_number_above_60():
    corpus = [text for index in range(300) for text in documents(0, index, 10)]
    assert not [text for text in corpus if re.search(r"\bHow far\b|\d+ from \d+", text)]
    subtracted = [int(number) for text in corpus for number in re.findall(r"\d+ - (\d+) = ", text)]
    assert subtracted and max(subtracted) == 60
    assert max(int(row["answer"].split()[2]) for row in differences("test", DIFFERENCES["test"])) > 90


def test_conversations_are_the_questions_with_their_answers():
    rows = differences("train", 5)
    assert [[message["content"] for message in row["messages"]] for row in conversations("train", 5)] == [
        [row["question"], row["answer"]] for row in rows
    ]
