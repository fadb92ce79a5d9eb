"""Breaks when a generated document depends on the process, or a text or chat row occurs in two splits."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import combinations

import pytest

from moe_lab.tasks.toy.corpus import documents
from moe_lab.tasks.toy.instructions import instructions
from moe_lab.tasks.toy.relations import RELATIONS
from moe_lab.tasks.toy.stories import stories
from moe_lab.tasks.toy.world import facts

DIGEST = """
import hashlib, json
from moe_lab.tasks.toy import corpus, instructions, questions, stories, word_problems
everything = [corpus.documents(0, 7, 50), instructions.instructions("train", 50), stories.stories("test", 20),
              questions.questions("test", 500), word_problems.word_problems("test", 100)]
print(hashlib.sha256(json.dumps(everything).encode()).hexdigest())
"""


@pytest.mark.slow
def test_documents_are_the_same_in_every_process():
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            text=True,
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(digests) == 1


def test_texts_and_chat_rows_of_two_splits_are_disjoint():
    texts = {split: {row["text"] for row in stories(split, 100)} for split in ("test", "validation", "train")}
    chats = {
        split: {row["messages"][0]["content"] for row in instructions(split, 200)}
        for split in ("test", "validation", "train")
    }
    corpus = {text for index in range(300) for text in documents(0, index, 10)}
    for splits in (texts, chats):
        assert all(not splits[first] & splits[second] for first, second in combinations(splits, 2))
    assert not corpus & (texts["test"] | texts["validation"])


def test_chat_rows_are_a_question_and_a_reply():
    for row in instructions("train", 300):
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        assert all(message["content"] for message in row["messages"])


def test_every_subject_has_every_fact_of_its_kind():
    for relation in RELATIONS.values():
        for subject in relation.subjects:
            assert facts()[relation.name, subject] in relation.objects


def test_groups_of_the_corpus_differ():
    groups = [
        hashlib.sha256(json.dumps(documents(seed, index, 3)).encode()).digest()
        for seed in (0, 1)
        for index in range(9)
    ]
    assert len(set(groups)) == len(groups)
