"""The facts of the toy world, drawn once from a fixed seed.

A fact is (relation, subject, object). Facts about people are spread unevenly over the corpus (`prominence`),
so that a model knows some people well and others hardly.
"""

from __future__ import annotations

from functools import cache

from moe_lab.tasks.toy.names import PEOPLE
from moe_lab.tasks.toy.relations import RELATIONS
from moe_lab.tasks.toy.seeded import generator

WORLD_VERSION = 1
"""Raised whenever a generated document may change: part of the identity of runs and of trained models."""


@cache
def facts() -> dict[tuple[str, str], str]:
    """All facts: {(relation, subject): object}. No person is their own friend."""
    drawn = {}
    for relation in RELATIONS.values():
        rng = generator("world", WORLD_VERSION, relation.name)
        for subject in relation.subjects:
            drawn[relation.name, subject] = rng.choice(
                [other for other in relation.objects if other != subject]
            )
    return drawn


def answer(subject: str, path: tuple[str, ...]) -> str:
    """The object reached from a subject along one relation, or along the two of a rule."""
    for relation in path:
        subject = facts()[relation, subject]
    return subject


@cache
def prominence() -> tuple[float, ...]:
    """Relative frequency of each of PEOPLE in the corpus: 1/rank in a random order."""
    ranks = list(range(len(PEOPLE)))
    generator("world", WORLD_VERSION, "prominence").shuffle(ranks)
    return tuple(1.0 / (rank + 8) for rank in ranks)


def statement(relation: str, subject: str, pick: int = 0) -> str:
    """One sentence that states a fact; `pick` chooses among its wordings."""
    wordings = RELATIONS[relation].statements
    return wordings[pick % len(wordings)].format(s=subject, o=facts()[relation, subject])
