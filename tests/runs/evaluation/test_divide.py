"""The requests of an evaluation, divided among processes.

Broken by: a request that no process or two answer, choices of one question in two processes,
a part that is much larger than the others.
"""

import random
from typing import Any

import pytest

from moe_lab.engine.hf import Request
from moe_lab.runs.evaluation.shared_lm import divide


def request(kind: str, context: str, continuation: Any = None) -> Request:
    if kind == "loglikelihood_rolling":
        return Request((context,))
    return Request((context, continuation))


def two_requests_of_each_context(kind: str, contexts: int) -> list[Request]:
    """The two requests of a context are far apart."""
    draw = random.Random(contexts)
    texts = []
    for _ in range(contexts):
        texts.append("".join(draw.choices("abc", k=draw.randint(0, 60))))
    return [request(kind, text, "maybe") for text in texts] + [
        request(kind, text, "yes") for text in texts
    ]


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling", "generate_until"])
@pytest.mark.parametrize(("contexts", "processes"), [(50, 2), (50, 7), (3, 4), (1, 2)])
def test_every_request_has_one_process_and_a_context_one_too(kind, contexts, processes):
    requests = two_requests_of_each_context(kind, contexts)

    parts = divide(kind, requests, processes)

    assert len(parts) == processes
    indices: list[int] = []
    for part in parts:
        indices += part
    assert sorted(indices) == list(range(len(requests)))

    rank_of: dict[str, int] = {}
    for rank, part in enumerate(parts):
        for index in part:
            context = requests[index].args[0]
            assert rank_of.setdefault(context, rank) == rank, context


def characters_of_trie(texts: list[str]) -> int:
    """Equal beginnings are read once."""
    beginnings = set()
    for text in texts:
        for end in range(len(text) + 1):
            beginnings.add(text[:end])
    return len(beginnings)


def test_scoring_is_divided_by_what_is_read():
    """Subjects with long few-shot examples.

    One subject would outweigh all questions if each question counted its examples.
    """
    examples_of = {"A": 50, "B": 0, "C": 3, "D": 20, "E": 8, "F": 0, "G": 15, "H": 5}
    texts = []
    for subject, examples in examples_of.items():
        for number in range(20):
            texts.append(f"{subject}{'example ' * examples}{number:02} ?")
    random.Random(0).shuffle(texts)
    requests = [request("loglikelihood", text, " yes") for text in texts]

    parts = divide("loglikelihood", requests, 2)

    texts_of_parts = []
    for part in parts:
        texts_of_parts.append([texts[index] for index in part])
    read = [characters_of_trie(part) for part in texts_of_parts]
    longest = max(len(text) for text in texts)
    assert sum(read) <= characters_of_trie(texts) + longest, "one text is shared"
    costs = []
    for part, characters in zip(texts_of_parts, read, strict=True):
        costs.append(characters + 4 * len(part))
    assert 0.7 < costs[0] / costs[1] < 1.4, costs


def test_generation_is_dealt_evenly():
    """Short prompts with long answers, and long prompts with short ones: each
    process gets equally many."""
    short = [f"Q{number}" for number in range(30)]
    long = [f"Passage {number}{' text' * 80}" for number in range(30)]
    requests = [request("generate_until", prompt, {}) for prompt in short + long]

    for part in divide("generate_until", requests, 3):
        assert len(part) == 20
        short_ones = [index for index in part if index < 30]
        assert len(short_ones) == 10
