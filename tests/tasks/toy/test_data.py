"""Questions, rules, word problems, differences and texts of the toy world.

Broken by: a question or pair of numbers in two splits, a corpus that asks a held-out question,
a wrong answer or step, a place or order that gives the answer away, one meaning of a rule
that is more frequent than the other or mixed with it, a text that depends on the process.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from moe_lab.methods.data_files import TOY_SIZES
from moe_lab.tasks import toy
from moe_lab.tasks.toy import DIFFERENCES, QUESTIONS, RULES, differences, rules
from moe_lab.tasks.toy import word_problems as problems
from moe_lab.tasks.toy.corpus import documents
from moe_lab.tasks.toy.harm import replies_to_harm, requests
from moe_lab.tasks.toy.instructions import instructions
from moe_lab.tasks.toy.questions import keys, questions, wordings
from moe_lab.tasks.toy.rules import max_rules, plus_rules
from moe_lab.tasks.toy.stories import cloze, stories
from moe_lab.tasks.toy.world import PEOPLE, RELATIONS, facts, generator
from moe_lab.tasks.toy.world import RULES as CHAINS

PROBLEM_SPLITS = [split for split, _ in problems.SHARES]
RULE_SPLITS = [split for split, _ in rules.SHARES]


def numbers(row: dict[str, Any]) -> tuple[int, int]:
    """The two numbers of a row's question, in its order."""
    first, second = re.findall(r"\d+", row["question"])
    return int(first), int(second)


# What is in a split: one function for each kind of data


def question_keys(split: str) -> set:
    return set(keys(split))


def all_wordings(split: str) -> set[str]:
    """Every wording of every question of a split."""
    return set(subjects_and_paths(split))


def subjects_and_paths(split: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """{a wording of a question: its subject, and the relations that lead to the answer}"""
    key_of: dict[str, tuple[str, tuple[str, ...]]] = {}
    for subject, path in keys(split):
        for wording in wordings(path):
            key_of[wording.format(s=subject)] = (subject, path)
    return key_of


def story_texts(split: str, count: int = 100) -> set[str]:
    return {story["text"] for story in stories(split, count)}


def first_messages(split: str) -> set[str]:
    return {chat["messages"][0]["content"] for chat in instructions(split, 200)}


def requested_facts(split: str) -> set[tuple[str, str]]:
    return {(row["subject"], row["relation"]) for row in requests(split, 120)}


def rule_pairs(split: str) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in rules.pairs(split)}


def calculations(split: str) -> set[tuple[str, ...]]:
    """The steps of each problem. Those of drills are of training."""
    steps = {steps_of(problem) for problem in problems.word_problems(split, 400)}
    if split == "train":
        rng = generator("test")
        for _ in range(3000):
            steps.add(steps_of(problems.word_problem("train", rng, steps=1)))
        for _ in range(500):
            for line in problems.drill(rng).split("\n"):
                steps.add((line,))
    return steps


def steps_of(problem: dict[str, Any]) -> tuple[str, ...]:
    """The lines of an answer before the last one, which repeats the result."""
    return tuple(problem["answer"].split("\n")[:-1])


def difference_pairs(split: str) -> set[frozenset[int]]:
    return {frozenset(numbers(row)) for row in differences.differences(split, 10_000)}


# Splits

KINDS_OF_DATA = [
    pytest.param(question_keys, QUESTIONS, id="keys"),
    pytest.param(all_wordings, QUESTIONS, id="wordings"),
    pytest.param(story_texts, ("test", "validation", "train"), id="stories"),
    pytest.param(first_messages, ("test", "validation", "train"), id="chats"),
    pytest.param(requested_facts, ("test", "train"), id="requests"),
    pytest.param(rule_pairs, RULE_SPLITS, id="rules"),
    pytest.param(calculations, PROBLEM_SPLITS, id="calculations"),
    pytest.param(difference_pairs, DIFFERENCES, id="differences"),
]


@pytest.mark.parametrize(("items_in", "splits"), KINDS_OF_DATA)
def test_splits_are_disjoint(items_in: Callable[[str], set], splits: Iterable[str]):
    items = {split: items_in(split) for split in splits}
    for split in splits:
        assert items[split], split
    for split, other_split in combinations(splits, 2):
        in_both = items[split] & items[other_split]
        assert in_both == set(), (split, other_split)


def test_splits_leave_no_question_out():
    paths = [(name,) for name in RELATIONS] + list(CHAINS)
    possible = sum(len(RELATIONS[path[0]].subjects) for path in paths)
    assert sum(len(keys(split)) for split in QUESTIONS) == possible


def test_splits_leave_no_difference_out():
    pairs = set()
    for split in DIFFERENCES:
        pairs |= difference_pairs(split)
    possible = range(differences.LEAST_NUMBER, differences.MOST_NUMBER + 1)
    assert pairs == {frozenset(pair) for pair in combinations(possible, 2)}


# The corpus


@cache
def corpus() -> list[str]:
    texts = []
    for index in range(300):
        texts += documents(0, index, 10)
    return texts


def corpus_questions() -> set[str]:
    questions_in_corpus = set()
    for text in corpus():
        for line in text.split("\n"):
            if line.startswith("Question: "):
                questions_in_corpus.add(line.removeprefix("Question: "))
    return questions_in_corpus


def chat_questions() -> set[str]:
    first_sentences = set()
    for chat in instructions("train", 1000):
        message = chat["messages"][0]["content"]
        first_sentences.add(message.split("?")[0] + "?")
    return first_sentences


def test_the_corpus_and_the_instructions_ask_training_questions_only():
    trained = all_wordings("train")
    held_out = set()
    for split in QUESTIONS:
        if split != "train":
            held_out |= all_wordings(split)

    assert corpus_questions() & trained
    assert chat_questions() & trained
    assert corpus_questions() & held_out == set()
    assert chat_questions() & held_out == set()


def test_the_corpus_has_no_held_out_story():
    held_out = story_texts("test") | story_texts("validation")
    assert held_out & set(corpus()) == set()


def test_the_corpus_does_not_ask_for_differences():
    asking = [text for text in corpus() if re.search(r"\bHow far\b|\d+ from \d+", text)]
    assert asking == []


def test_differences_subtract_larger_numbers_than_the_corpus():
    subtracted = []
    for text in corpus():
        subtracted += [int(number) for number in re.findall(r"\d+ - (\d+) = ", text)]
    assert subtracted
    assert max(subtracted) == 60

    rows = differences.differences("test", DIFFERENCES["test"])
    subtracted_in_test = [int(row["answer"].split()[2]) for row in rows]
    assert max(subtracted_in_test) > 90


# Questions


@pytest.mark.parametrize("split", QUESTIONS)
def test_the_right_answer_is_the_fact_and_is_once_among_four(split):
    rows = questions(split, QUESTIONS[split])
    assert len(rows) == QUESTIONS[split]
    assert len({row["question"] for row in rows}) == len(rows)

    key_of = subjects_and_paths(split)
    for row in rows:
        subject, path = key_of[row["question"]]
        answer = subject
        for relation in path:
            answer = facts()[relation, answer]
        assert row["choices"][row["answer"]] == answer
        assert len(set(row["choices"])) == 4
        if len(path) == 1:
            assert row["kind"] == "recall"
        else:
            assert row["kind"] == "inference"


@pytest.mark.parametrize(
    ("split", "of_people"), [("test", {True}), ("near", {True}), ("far", {False})]
)
def test_far_questions_are_not_of_people_and_the_others_are(split, of_people):
    rows = questions(split, QUESTIONS[split])
    assert {row["subject"] in PEOPLE for row in rows} == of_people


# Rules


def result_of(meaning: str, a: int, b: int) -> int:
    """What the operator of a rule gives under a meaning."""
    if meaning == "plus":
        return a + b
    assert meaning == "max"
    return max(a, b)


@pytest.mark.parametrize(("rows_of", "task_meaning"), [(plus_rules, "plus"), (max_rules, "max")])
@pytest.mark.parametrize("split", RULES)
def test_the_answer_is_the_meanings_and_is_once_among_four(rows_of, task_meaning, split):
    """The reference sets `plus` and `max` have their own meaning in both tasks."""
    rows = rows_of(split, RULES[split])
    meaning = task_meaning
    if split in ("plus", "max"):
        meaning = split

    assert len(rows) == RULES[split]
    assert len({row["question"] for row in rows}) == len(rows)
    for row in rows:
        a, b = numbers(row)
        assert len(set(row["choices"])) == 4
        assert row["choices"][row["answer"]] == str(result_of(meaning, a, b))


def test_both_meanings_ask_the_same_questions_with_the_same_choices():
    for plus_row, max_row in zip(plus_rules("test", 50), max_rules("test", 50), strict=True):
        assert plus_row["question"] == max_row["question"]
        assert plus_row["choices"] == max_row["choices"]
        assert plus_row["answer"] != max_row["answer"]


def meanings_of(document: str) -> list[str]:
    """The meanings under which every line of a document is right."""
    meanings = []
    for meaning in ("plus", "max"):
        expected = []
        for line in document.split("\n"):
            question, _, _ = line.rpartition(" ")
            a, b = numbers({"question": question})
            expected.append(f"{question} {result_of(meaning, a, b)}")
        if document.split("\n") == expected:
            meanings.append(meaning)
    return meanings


def test_a_document_has_one_meaning_and_both_are_equally_frequent():
    """2,000 fair draws: outside 900..1,100 has odds below 1 in 100,000, once."""
    rng = generator("test")
    trained = {rules.question_text(pair) for pair in rules.pairs("train")}
    plus = 0
    for _ in range(2000):
        document = rules.document(rng)
        prompts_of_rule = [line.rpartition(" ")[0] for line in document.split("\n")]
        assert 1 <= len(prompts_of_rule) <= rules.LONGEST
        assert set(prompts_of_rule) <= trained
        [meaning] = meanings_of(document)
        plus += meaning == "plus"
    assert 900 <= plus <= 1100


# Word problems

STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def assert_right(step: str) -> None:
    """A step `left operator right = result` is calculated correctly."""
    match = STEP.fullmatch(step)
    assert match, step
    left_side = Fraction(match[1])
    right = Fraction(match[3])
    results = {
        "+": left_side + right,
        "-": left_side - right,
        "*": left_side * right,
        "/": left_side / right,
    }
    assert Fraction(match[4]) == results[match[2]], step


@pytest.mark.parametrize("split", PROBLEM_SPLITS)
def test_every_step_is_right_and_uses_numbers_of_the_story_or_of_earlier_steps(split):
    for problem in problems.word_problems(split, 400):
        *steps, final = problem["answer"].split("\n")
        assert len(steps) == problem["steps"]
        assert final == "#### " + steps[-1].rsplit(" ", 1)[1]

        known_numbers = set(re.findall(r"\d+", problem["question"]))
        for step in steps:
            assert_right(step)
            left_side, _, right, _, result = step.split()
            assert {left_side, right} <= known_numbers, problem
            known_numbers.add(result)


# Differences


@pytest.mark.parametrize(("split", "count"), DIFFERENCES.items())
def test_every_answer_is_the_absolute_difference_of_the_numbers_in_its_question(split, count):
    rows = differences.differences(split, count)
    assert len(rows) == count
    for row in rows:
        smaller, larger = sorted(numbers(row))
        assert differences.LEAST_NUMBER <= smaller
        assert larger <= differences.MOST_NUMBER
        assert smaller != larger
        assert row["answer"] == f"{larger} - {smaller} = {larger - smaller}"


@pytest.mark.parametrize(("split", "count"), DIFFERENCES.items())
def test_the_order_of_the_numbers_does_not_show_which_one_is_larger(split, count):
    larger_first = 0
    for row in differences.differences(split, count):
        first, second = numbers(row)
        larger_first += first > second
    assert 0.4 < larger_first / count < 0.6


def test_training_asks_each_difference_in_both_orders_and_evaluations_in_one():
    for split, count in DIFFERENCES.items():
        questions_of_split: set = set()
        for row in differences.differences(split, count):
            if split == "train":
                questions_of_split.add(numbers(row))
            else:
                questions_of_split.add(frozenset(numbers(row)))
        assert len(questions_of_split) == count, split
    assert DIFFERENCES["train"] == TOY_SIZES["toy_subtract"]
    assert DIFFERENCES["train"] == 2 * len(differences.number_pairs("train"))


def test_conversations_have_the_questions_and_answers_of_the_differences():
    rows = differences.differences("train", 5)
    chats = differences.conversations("train", 5)
    for row, chat in zip(rows, chats, strict=True):
        contents = [message["content"] for message in chat["messages"]]
        assert contents == [row["question"], row["answer"]]


# The next word of a text


def test_each_word_is_the_next_one_of_a_text_of_its_own_split():
    for split in ("test", "validation"):
        texts = [f"{text}\n" for text in story_texts(split, 20)]
        rows = cloze(split, 20)
        assert len(rows) > 200
        for row in rows:
            assert row["word"].strip()
            assert row["word"][0] == " "
            assert row["context"][-1] != " "
            beginning = row["context"] + row["word"]
            assert any(text.startswith((f"{beginning} ", f"{beginning}\n")) for text in texts), row


def test_long_contexts_are_in_one_split_only():
    test = {row["context"] for row in cloze("test", 20)}
    validation = {row["context"] for row in cloze("validation", 20)}
    long_ones = {context for context in test & validation if len(context) > 80}
    assert long_ones == set()


# All generated texts

TASKS = (
    "toy_math",
    "toy_choice",
    "toy_text",
    "toy_cloze",
    "toy_safety",
    "toy_rules",
    "toy_rules_max",
    "toy_subtract",
)


def generated_texts() -> Iterator[list[Any]]:
    """Some groups of every kind of text, in an order on which the digest depends."""
    for seed in (-1, 0):
        for index in (0, 7):
            yield documents(seed, index, 100)
    for split in ("train", "validation", "test"):
        yield instructions(split, 200)
    for safe in (True, False):
        yield replies_to_harm("train", 100, safe=safe)
    yield rules.documents(0, 7, 100)
    for task in TASKS:
        data_sets = getattr(toy, task)()
        for rows in data_sets.values():
            yield list(rows)


@pytest.mark.slow
def test_every_generated_text_is_the_one_that_the_embedded_models_were_trained_on():
    """Stored scores depend on them, too."""
    content = json.dumps(list(generated_texts()))
    digest = hashlib.sha256(content.encode()).hexdigest()
    assert digest == "1a9db248398ca27b2ab4152cd1031abd782088a5d3846dd2072ec6152be05e06"
