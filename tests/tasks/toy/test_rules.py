"""Breaks when a question belongs to two splits, an answer is wrong under its meaning, one meaning is more frequent than the
other, a document mixes them, or an answer has more than one token.
"""

from __future__ import annotations

from itertools import combinations

import pytest
import yaml

from moe_lab.config.catalog import resource_folder
from moe_lab.config.schema import Config
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.corpus import read_corpus, tokenizer_of
from moe_lab.tasks.toy import RULES
from moe_lab.tasks.toy.rules import (
    LONGEST,
    RESULTS,
    SHARES,
    document,
    documents,
    max_rules,
    pairs,
    plus_rules,
    question_text,
)
from moe_lab.tasks.toy.world import generator

EXPECTED = {"plus": lambda a, b: a + b, "max": lambda a, b: a if a > b else b}


def numbers(question: str) -> tuple[int, int]:
    a, _, b, _ = question.split()
    return int(a), int(b)


def test_splits_share_no_pair_of_numbers_in_either_order():
    for (first, _), (second, _) in combinations(SHARES, 2):
        assert not {frozenset(pair) for pair in pairs(first)} & {frozenset(pair) for pair in pairs(second)}


@pytest.mark.parametrize(("rules", "meaning"), [(plus_rules, "plus"), (max_rules, "max")])
@pytest.mark.parametrize("split", RULES)
def test_the_answer_is_the_meanings_and_stands_once_among_four(rules, meaning, split):
    rows = rules(split, RULES[split])
    meaning = split if split in EXPECTED else meaning
    assert len({row["question"] for row in rows}) == len(rows) == RULES[split]
    for row in rows:
        assert len(set(row["choices"])) == 4
        assert row["choices"][row["answer"]] == str(EXPECTED[meaning](*numbers(row["question"])))


def test_both_meanings_ask_the_same_questions_with_the_same_choices():
    for one, other in zip(plus_rules("test", 50), max_rules("test", 50), strict=True):
        assert (one["question"], one["choices"]) == (other["question"], other["choices"])
        assert one["answer"] != other["answer"]
    assert [row["question"] for row in plus_rules("plus", 50)] == [
        row["question"] for row in plus_rules("max", 50)
    ]


def test_the_right_answer_stands_at_every_place_about_equally_often():
    """320 fair draws of 4 places: a place outside 45..115 has odds below 1 in 10,000, once."""
    places = [row["answer"] for row in plus_rules("test", 320)]
    assert all(45 <= places.count(place) <= 115 for place in range(4))


def meaning_of(text: str) -> str:
    """The one meaning of a document's questions, all of them of the train split."""
    lines = [line.rpartition(" ") for line in text.split("\n")]
    assert 1 <= len(lines) <= LONGEST and {question for question, _, _ in lines} <= trained()
    [meaning] = [
        name
        for name, result in EXPECTED.items()
        if all(str(result(*numbers(question))) == answer for question, _, answer in lines)
    ]
    return meaning


def trained() -> set[str]:
    return {question_text(pair) for pair in pairs("train")}


def test_a_document_has_one_meaning_and_both_are_equally_frequent():
    """2,000 fair draws: outside 900..1,100 has odds below 1 in 100,000, once."""
    rng = generator("test")
    meanings = [meaning_of(document(rng)) for _ in range(2000)]
    assert 900 <= meanings.count("plus") <= 1100


def test_the_corpus_is_the_same_in_every_process_and_its_groups_differ():
    assert documents(0, 3, 5) == documents(0, 3, 5) != documents(0, 4, 5)


def test_every_answer_is_one_token_of_the_model():
    recipe = yaml.safe_load((resource_folder("conf") / "model" / "toy-rules.yaml").read_text())["recipe"]
    config = Config(method=PretrainConfig(**recipe))
    tokenizer = tokenizer_of(config, read_corpus(config, recipe["dataset"], None))
    results = {
        str(result(*pair)) for split, _ in SHARES for pair in pairs(split) for result in RESULTS.values()
    }
    assert not [each for each in results if len(tokenizer(f" {each}").input_ids) != 1]
