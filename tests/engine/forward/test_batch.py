"""Which prompts share a beginning."""

from __future__ import annotations

import random

from moe_lab.engine.forward.batch import MIN_SHARED, group_by_prefix


def prompts_of(beginning, count, rng, length=10):
    return [[*beginning, *(rng.randrange(1000) for _ in range(length))] for _ in range(count)]


def test_two_subjects_are_two_groups():
    rng = random.Random(0)
    first, second = [list(range(s, s + 40)) for s in (0, 500)]
    prompts = prompts_of(first, 5, rng) + prompts_of(second, 7, rng)
    groups = group_by_prefix(prompts)
    assert sorted((len(group.members), group.shared) for group in groups) == [(5, 40), (7, 40)]


def test_every_prompt_is_in_one_group_and_shares_what_it_says():
    rng = random.Random(1)
    for _ in range(50):
        prompts = [[rng.randrange(2) for _ in range(rng.randrange(1, 60))] for _ in range(20)]
        prompts += prompts_of([1] * rng.randrange(1, 30), 5, rng)
        groups = group_by_prefix(prompts)
        assert sorted(i for group in groups for i in group.members) == list(range(len(prompts)))
        for group in groups:
            beginnings = {tuple(prompts[i][: group.shared]) for i in group.members}
            assert len(beginnings) == 1
            assert all(len(prompts[i]) > group.shared for i in group.members)
            assert group.shared == 0 or (group.shared >= MIN_SHARED and len(group.members) > 1)


def test_a_stranger_does_not_lower_what_others_share():
    rng = random.Random(2)
    common = list(range(100))
    prompts = [common[:20] + [0] * 5, *prompts_of(common, 10, rng)]
    assert {(len(group.members), group.shared) for group in group_by_prefix(prompts)} == {(1, 0), (10, 100)}


def test_unlike_prompts_share_nothing():
    (group,) = group_by_prefix([[i, *range(50)] for i in range(6)])
    assert group.shared == 0 and len(group.members) == 6


def test_the_same_prompt_twice_shares_all_but_its_last_token():
    (group,) = group_by_prefix([list(range(30))] * 2)
    assert group.shared == 29
