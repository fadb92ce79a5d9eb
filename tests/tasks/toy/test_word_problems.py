"""Breaks when a worked step or an answer is wrong, or when two splits share a calculation or a pair of numbers."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import combinations

import pytest

from moe_lab.methods.data_files import TOY_SIZES
from moe_lab.tasks.toy import DIFFERENCES
from moe_lab.tasks.toy.corpus import documents
from moe_lab.tasks.toy.word_problems import (
    LEAST_NUMBER,
    MOST_NUMBER,
    SHARES,
    conversations,
    differences,
    drill,
    number_pairs,
    word_problem,
    word_problems,
)
from moe_lab.tasks.toy.world import generator

STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
SPLITS = [split for split, _ in SHARES]


def is_right(line: str) -> bool:
    match = STEP.fullmatch(line)
    assert match, line
    left, right, result = (Fraction(match[i]) for i in (1, 3, 4))
    expected = {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[match[2]]
    return expected == result


def calculation(problem: dict) -> tuple[str, ...]:
    return tuple(problem["answer"].split("\n")[:-1])


@pytest.mark.parametrize("split", SPLITS)
def test_every_step_is_right_and_the_last_one_is_the_answer(split):
    for problem in word_problems(split, 400):
        *steps, final = problem["answer"].split("\n")
        assert len(steps) == problem["steps"] and all(is_right(step) for step in steps)
        assert final == "#### " + steps[-1].rsplit(" ", 1)[1]


@pytest.mark.parametrize("split", SPLITS)
def test_the_story_tells_every_number_that_is_not_an_intermediate_result(split):
    for problem in word_problems(split, 200):
        known = set(re.findall(r"\d+", problem["question"]))
        for step in calculation(problem):
            left, _, right, _, result = step.split()
            assert {left, right} <= known, problem
            known.add(result)


def test_no_calculation_and_no_question_occurs_in_two_splits():
    rng = generator("test")
    calculations = {split: {calculation(one) for one in word_problems(split, 400)} for split in SPLITS}
    calculations["train"] |= {calculation(word_problem("train", rng, steps=1)) for _ in range(3000)}
    calculations["train"] |= {(line,) for _ in range(500) for line in drill(rng).split("\n")}
    assert not calculations["test"] & (calculations["train"] | calculations["validation"])
    assert not calculations["validation"] & calculations["train"]


def test_problems_are_distinct_and_cover_one_to_four_steps():
    problems = word_problems("test", 400)
    assert len({problem["question"] for problem in problems}) == 400
    assert [problem["steps"] for problem in problems[:4]] == [1, 2, 3, 4]


def test_drills_are_right():
    assert all(
        is_right(line) for index in range(200) for line in drill(generator("drill", index)).split("\n")
    )


# Differences of two numbers

DIFFERENCE_SPLITS = tuple(DIFFERENCES)


def numbers(row) -> tuple[int, int]:
    first, second = map(int, re.findall(r"\d+", row["question"]))
    return first, second


def test_every_answer_is_the_absolute_difference_of_the_numbers_in_its_question():
    for split, count in DIFFERENCES.items():
        rows = differences(split, count)
        assert len(rows) == count
        for row in rows:
            a, b = numbers(row)
            assert LEAST_NUMBER <= min(a, b) and max(a, b) <= MOST_NUMBER and a != b
            assert row["answer"] == f"{max(a, b)} - {min(a, b)} = {abs(a - b)}"
        larger_first = sum(a > b for a, b in map(numbers, rows)) / count
        assert 0.4 < larger_first < 0.6, "the order of the numbers must not tell which one is larger"


def test_splits_share_no_pair_in_either_order():
    drawn = {
        split: {frozenset(numbers(row)) for row in differences(split, 10_000)} for split in DIFFERENCE_SPLITS
    }
    assert all(not drawn[first] & drawn[second] for first, second in combinations(DIFFERENCE_SPLITS, 2))
    assert sum(map(len, drawn.values())) == len(list(combinations(range(LEAST_NUMBER, MOST_NUMBER + 1), 2)))


def test_a_pair_is_asked_once_in_an_evaluation_and_in_both_orders_in_training():
    for split in ("test", "validation"):
        assert (
            len({frozenset(numbers(row)) for row in differences(split, DIFFERENCES[split])})
            == DIFFERENCES[split]
        )
    assert DIFFERENCES["train"] == TOY_SIZES["toy_subtract"] == 2 * len(number_pairs("train"))
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
