"""The training corpus of the toy world: an endless stream of documents, none of them from an
evaluation split."""

from __future__ import annotations

import random
from collections.abc import Callable

from moe_lab.tasks.toy.questions import keys, wordings
from moe_lab.tasks.toy.stories import portrait, story
from moe_lab.tasks.toy.word_problems import drill, word_problem
from moe_lab.tasks.toy.world import answer, generator


def _problems(rng: random.Random) -> str:
    """One or two word problems with their worked steps."""
    problems = []
    for _ in range(rng.choice((1, 1, 1, 1, 2))):
        problem = word_problem("train", rng)
        problems.append(f"Question: {problem['question']}\nAnswer: {problem['answer']}")
    return "\n\n".join(problems)


def _questions(rng: random.Random) -> str:
    """One to five questions about the world with their answers."""
    questions = []
    for subject, path in rng.choices(keys("train"), k=rng.randint(1, 5)):
        text = rng.choice(wordings(path)).format(s=subject)
        questions.append(f"Question: {text}\nAnswer: {answer(subject, path)}")
    return "\n\n".join(questions)


SHARES: dict[Callable[[random.Random], str], float] = {
    _problems: 0.40,
    drill: 0.12,
    lambda rng: portrait(rng, sentences=rng.randint(2, 7)): 0.20,
    _questions: 0.22,
    lambda rng: story("train", rng): 0.06,
}
"""The kinds of documents, and the share of each."""


def document(rng: random.Random) -> str:
    """Draw one document of the corpus."""
    return rng.choices(list(SHARES), list(SHARES.values()))[0](rng)


def documents(seed: int, index: int, count: int) -> list[str]:
    """The `index`-th group of `count` documents of the corpus with this seed: the same in every
    process."""
    rng = generator("corpus", seed, index)
    return [document(rng) for _ in range(count)]
