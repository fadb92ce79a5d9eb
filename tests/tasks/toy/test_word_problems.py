"""Breaks when a worked step is wrong, an answer is not its last step, or two splits share a calculation."""

import re
from fractions import Fraction

import pytest

from moe_lab.tasks.toy.seeded import generator
from moe_lab.tasks.toy.word_problems import SHARES, drill, word_problem, word_problems

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
