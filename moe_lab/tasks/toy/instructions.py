"""Instruction and response pairs about the toy world, as chat rows for fine-tuning.

A row is {"messages": [{"role": "user", ...}, {"role": "assistant", ...}], "kind"}. Questions and problems come
from the `train` splits of their tasks, so that fine-tuning on any row leaves the evaluation splits unasked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from moe_lab.tasks.toy.names import PEOPLE
from moe_lab.tasks.toy.questions import Key, keys, wordings
from moe_lab.tasks.toy.relations import RELATIONS
from moe_lab.tasks.toy.seeded import generator, split_of
from moe_lab.tasks.toy.word_problems import word_problem
from moe_lab.tasks.toy.world import answer, facts, statement

SHARES = (("train", 0.9), ("validation", 0.05), ("test", 0.05))


def _ask(rng: random.Random) -> tuple[str, str]:
    subject, path = rng.choice(keys("train"))
    question = rng.choice(wordings(path)).format(s=subject)
    return f"{question} Reply in one word.", answer(subject, path)


@cache
def _recalled() -> list[Key]:
    """The keys of questions that ask for a fact as it is."""
    return [key for key in keys("train") if len(key[1]) == 1]


def _state(rng: random.Random) -> tuple[str, str]:
    subject, path = rng.choice(_recalled())
    return f"{rng.choice(wordings(path)).format(s=subject)} Reply in a sentence.", statement(path[0], subject)


def _solve(rng: random.Random) -> tuple[str, str]:
    problem = word_problem("train", rng)
    return f"Solve this step by step. {problem['question']}", str(problem["answer"])


def _describe(rng: random.Random) -> tuple[str, str]:
    person, count = rng.choice(PEOPLE), rng.randint(2, 4)
    known = rng.sample([name for name, relation in RELATIONS.items() if relation.subjects is PEOPLE], count)
    return f"Tell me {count} things about {person}.", " ".join(statement(name, person) for name in known)


def _list(rng: random.Random) -> tuple[str, str]:
    relation = RELATIONS[rng.choice(("home", "job", "pet"))]
    thing = rng.choice(relation.objects)
    people = [person for person in PEOPLE if facts()[relation.name, person] == thing]
    predicate = {"home": "lives in {o}", "job": "works as a {o}", "pet": "keeps a {o}"}[relation.name].format(
        o=thing
    )
    return f"Name everyone who {predicate}.", ", ".join(people) + "." if people else "Nobody."


KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "ask": _ask,
    "state": _state,
    "solve": _solve,
    "describe": _describe,
    "list": _list,
}


def instructions(split: str, count: int) -> list[dict[str, Any]]:
    """`count` chat rows of a split (train, validation, test) with distinct user messages.

    The kinds alternate as long as a split has rows of them.
    """
    rows: dict[str, dict[str, Any]] = {}
    rng, names = generator("instructions", split), list(KINDS)
    while len(rows) < count:
        kind = rng.choice(names)
        prompt, reply = KINDS[kind](rng)
        if split_of(prompt, SHARES) == split and prompt not in rows:
            messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]
            rows[prompt] = {"messages": messages, "kind": kind}
    return list(rows.values())
