"""Questions about the world's facts with four answers each: recalled, or reached by one step of inference.

A question's key is (subject, path); every key belongs to one split, whatever the wording. The training corpus
states all facts but asks the questions of `train` only. `near` is drawn as `test` is (questions about people);
`far` asks about towns, jobs, animals, foods and lands instead.
"""

from __future__ import annotations

from functools import cache

from moe_lab.tasks.toy.names import PEOPLE
from moe_lab.tasks.toy.relations import RELATIONS, RULES
from moe_lab.tasks.toy.seeded import generator, split_of
from moe_lab.tasks.toy.world import answer

PEOPLE_SHARES = (("test", 0.25), ("near", 0.20), ("validation", 0.10), ("train", 0.45))
OTHER_SHARES = (("far", 0.55), ("train", 0.45))
INFERENCE = {"test": 0.5, "near": 0.5, "validation": 0.5}
"""Share of questions that need inference, for splits with a fixed share."""

Key = tuple[str, tuple[str, ...]]


@cache
def keys(split: str) -> tuple[Key, ...]:
    """All (subject, path) keys of a split, in a fixed order."""
    paths = [(name,) for name in RELATIONS] + list(RULES)
    split_keys = []
    for path in paths:
        subjects = RELATIONS[path[0]].subjects
        shares = PEOPLE_SHARES if subjects is PEOPLE else OTHER_SHARES
        split_keys += [
            (subject, path)
            for subject in subjects
            if split_of(f"{subject}/{'/'.join(path)}", shares) == split
        ]
    return tuple(split_keys)


def wordings(path: tuple[str, ...]) -> tuple[str, ...]:
    return RELATIONS[path[0]].questions if len(path) == 1 else (RULES[path[0], path[1]],)


def question(key: Key) -> dict[str, object]:
    """One multiple-choice question: {"question", "choices", "answer": index, "kind", "subject"}."""
    subject, path = key
    rng = generator("question", subject, *path)
    right = answer(subject, path)
    others = [other for other in RELATIONS[path[-1]].objects if other not in (right, subject)]
    choices = [right, *rng.sample(others, 3)]
    rng.shuffle(choices)
    return {
        "question": rng.choice(wordings(path)).format(s=subject),
        "choices": choices,
        "answer": choices.index(right),
        "kind": "recall" if len(path) == 1 else "inference",
        "subject": subject,
    }


def questions(split: str, count: int) -> list[dict[str, object]]:
    """Up to `count` questions of a split in random order, with the split's share of inference."""
    rng = generator("questions", split)
    drawn = rng.sample(keys(split), len(keys(split)))
    if split in INFERENCE:
        inferred = round(count * INFERENCE[split])
        recalled = [key for key in drawn if len(key[1]) == 1][: count - inferred]
        drawn = recalled + [key for key in drawn if len(key[1]) == 2][:inferred]
        rng.shuffle(drawn)
    return [question(key) for key in drawn[:count]]
