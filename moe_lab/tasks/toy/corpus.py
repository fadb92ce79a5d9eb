"""The training corpus: an endless, indexed stream of documents, none of them from an evaluation split."""

from __future__ import annotations

import random

from moe_lab.tasks.toy.questions import keys, wordings
from moe_lab.tasks.toy.seeded import generator
from moe_lab.tasks.toy.stories import portrait, story
from moe_lab.tasks.toy.word_problems import drill, word_problem
from moe_lab.tasks.toy.world import answer

SHARES = {"problems": 0.40, "drill": 0.12, "portrait": 0.20, "questions": 0.22, "story": 0.06}
"""How often each kind of document is drawn."""


def _problems(rng: random.Random) -> str:
    drawn = [word_problem("train", rng) for _ in range(rng.choice((1, 1, 1, 1, 2)))]
    return "\n\n".join(f"Question: {one['question']}\nAnswer: {one['answer']}" for one in drawn)


def _questions(rng: random.Random) -> str:
    questions = []
    for subject, path in rng.choices(keys("train"), k=rng.randint(1, 5)):
        text = rng.choice(wordings(path)).format(s=subject)
        questions.append(f"Question: {text}\nAnswer: {answer(subject, path)}")
    return "\n\n".join(questions)


def document(rng: random.Random) -> str:
    """Draw one document of the corpus."""
    kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
    if kind == "problems":
        return _problems(rng)
    if kind == "drill":
        return drill(rng)
    if kind == "portrait":
        return portrait(rng, sentences=rng.randint(2, 7))
    if kind == "questions":
        return _questions(rng)
    return story("train", rng)


def documents(seed: int, index: int, count: int) -> list[str]:
    """The `index`-th group of `count` documents of the corpus drawn with `seed`: the same in every process."""
    rng = generator("corpus", seed, index)
    return [document(rng) for _ in range(count)]
