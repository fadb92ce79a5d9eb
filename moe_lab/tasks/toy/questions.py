"""Questions about the facts of the toy world.

A question's key is (subject, path): the path has one relation (recall) or two (one step of
inference). Every key belongs to one split, whatever the wording. The training corpus states all
facts, but asks only the questions of `train`. The split `near` asks about people, as `test` does.
`far` asks about towns, jobs, animals, foods and lands instead.
"""

from __future__ import annotations

from functools import cache

from moe_lab.tasks.toy.world import (
    PEOPLE,
    RELATIONS,
    RULES,
    answer,
    generator,
    split_of,
)

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
        for subject in subjects:
            if split_of(f"{subject}/{'/'.join(path)}", shares) == split:
                split_keys.append((subject, path))
    return tuple(split_keys)


@cache
def recalled(split: str) -> list[Key]:
    """The keys of questions without inference."""
    return [key for key in keys(split) if len(key[1]) == 1]


def wordings(path: tuple[str, ...]) -> tuple[str, ...]:
    """The forms of a question, with `{s}` in the place of the subject."""
    if len(path) == 1:
        return RELATIONS[path[0]].questions
    return (RULES[path[0], path[1]],)


def question(key: Key) -> dict[str, object]:
    """One multiple-choice question: {"question", "choices", "answer": index, "kind", "subject"}."""
    subject, path = key
    rng = generator("question", subject, *path)
    right = answer(subject, path)
    wrong = [thing for thing in RELATIONS[path[-1]].objects if thing not in (right, subject)]
    choices = [right, *rng.sample(wrong, 3)]
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
    shuffled = rng.sample(keys(split), len(keys(split)))
    if split in INFERENCE:
        inferred_count = round(count * INFERENCE[split])
        without_inference = [key for key in shuffled if len(key[1]) == 1]
        with_inference = [key for key in shuffled if len(key[1]) == 2]
        shuffled = without_inference[: count - inferred_count] + with_inference[:inferred_count]
        rng.shuffle(shuffled)
    return [question(key) for key in shuffled[:count]]
