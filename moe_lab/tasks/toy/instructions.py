"""Instructions and responses about the toy world, as chat rows for fine-tuning."""

from __future__ import annotations

import random
from typing import Any

from moe_lab.tasks.toy.questions import keys, recalled, wordings
from moe_lab.tasks.toy.word_problems import word_problem
from moe_lab.tasks.toy.world import PEOPLE, RELATIONS, answer, facts, generator, split_of, statement

INSTRUCTION_SHARES = (("train", 0.9), ("validation", 0.05), ("test", 0.05))


def _ask(rng: random.Random) -> tuple[str, str]:
    """(prompt, reply): a question and its answer, one word."""
    subject, path = rng.choice(keys("train"))
    question = rng.choice(wordings(path)).format(s=subject)
    return f"{question} Reply in one word.", answer(subject, path)


def _state(rng: random.Random) -> tuple[str, str]:
    """(prompt, reply): a question and its answer as a sentence."""
    subject, path = rng.choice(recalled("train"))
    question = rng.choice(wordings(path)).format(s=subject)
    return f"{question} Reply in a sentence.", statement(path[0], subject)


def _solve(rng: random.Random) -> tuple[str, str]:
    """(prompt, reply): a word problem and its steps."""
    problem = word_problem("train", rng)
    return f"Solve this step by step. {problem['question']}", str(problem["answer"])


def _describe(rng: random.Random) -> tuple[str, str]:
    """(prompt, reply): a request for facts about a person, and as many statements."""
    person = rng.choice(PEOPLE)
    count = rng.randint(2, 4)
    about_people = [name for name, relation in RELATIONS.items() if relation.subjects is PEOPLE]
    sentences = [statement(name, person) for name in rng.sample(about_people, count)]
    return f"Tell me {count} things about {person}.", " ".join(sentences)


def _list(rng: random.Random) -> tuple[str, str]:
    """(prompt, reply): a request for all people with a home, a job or a pet, and their names."""
    predicates = {"home": "lives in", "job": "works as a", "pet": "keeps a"}
    name = rng.choice(list(predicates))
    thing = rng.choice(RELATIONS[name].objects)
    people = [person for person in PEOPLE if facts()[name, person] == thing]
    reply = f"{', '.join(people)}." if people else "Nobody."
    return f"Name everyone who {predicates[name]} {thing}.", reply


def instructions(split: str, count: int) -> list[dict[str, Any]]:
    """`count` rows {"messages": [{"role": "user", ...}, {"role": "assistant", ...}], "kind"}, no
    user message twice.

    `split` is train, validation or test. The questions and problems come from the `train` splits of
    their tasks, so that no row contains a question of an evaluation split.
    """
    rows: dict[str, dict[str, Any]] = {}
    rng = generator("instructions", split)
    kinds = (_ask, _state, _solve, _describe, _list)
    while len(rows) < count:
        kind = rng.choice(kinds)
        prompt, reply = kind(rng)
        if split_of(prompt, INSTRUCTION_SHARES) == split and prompt not in rows:
            messages = [
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": reply},
            ]
            rows[prompt] = {"messages": messages, "kind": kind.__name__.removeprefix("_")}
    return list(rows.values())
