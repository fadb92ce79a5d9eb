"""Which prompts share a beginning, and the names of tokens.

Broken by a prompt that is in no group or in two, a beginning that a prompt of its group does
not have, and by equal names of other texts.
"""

import random
from itertools import permutations

import torch

from moe_lab.engine.forward.batch import (
    MIN_SHARED,
    TokenTree,
    collate,
    group_by_prefix,
    prefix_names,
    token_names,
)
from tests.support.slow_routing import MASK, slow_hash


def prompts_of(
    beginning: list[int], count: int, rng: random.Random, length: int = 10
) -> list[list[int]]:
    """Prompts of a common beginning and `length` random tokens."""
    prompts = []
    for _ in range(count):
        prompts.append([*beginning, *random_ids(rng, length, 1000)])
    return prompts


def random_ids(rng: random.Random, length: int, vocabulary: int) -> list[int]:
    return [rng.randrange(vocabulary) for _ in range(length)]


def test_two_subjects_are_two_groups():
    rng = random.Random(0)
    first_subject = list(range(40))
    second_subject = list(range(500, 540))
    prompts = prompts_of(first_subject, 5, rng) + prompts_of(second_subject, 7, rng)
    groups = group_by_prefix(prompts)
    assert sorted((len(group.members), group.shared) for group in groups) == [(5, 40), (7, 40)]


def test_every_prompt_is_in_one_group_and_shares_what_it_says():
    rng = random.Random(1)
    for _ in range(50):
        prompts = [random_ids(rng, rng.randrange(1, 60), 2) for _ in range(20)]
        prompts += prompts_of([1] * rng.randrange(1, 30), 5, rng)
        groups = group_by_prefix(prompts)

        members: list[int] = []
        for group in groups:
            members += group.members
        assert sorted(members) == list(range(len(prompts)))
        for group in groups:
            prompts_in_group = [prompts[index] for index in group.members]
            beginnings = {tuple(prompt[: group.shared]) for prompt in prompts_in_group}
            assert len(beginnings) == 1
            assert min(len(prompt) for prompt in prompts_in_group) > group.shared
            if group.shared > 0:
                assert group.shared >= MIN_SHARED
                assert len(group.members) > 1


def test_a_stranger_does_not_lower_what_others_share():
    rng = random.Random(2)
    common = list(range(100))
    prompts = [common[:20] + [0] * 5, *prompts_of(common, 10, rng)]
    groups = group_by_prefix(prompts)
    assert sorted((len(group.members), group.shared) for group in groups) == [(1, 0), (10, 100)]


def test_unlike_prompts_share_nothing():
    [group] = group_by_prefix([[number, *range(50)] for number in range(6)])
    assert group.shared == 0
    assert len(group.members) == 6


def test_the_same_prompt_twice_shares_all_but_its_last_token():
    [group] = group_by_prefix([list(range(30))] * 2)
    assert group.shared == 29


def signed(value: int) -> int:
    """The int64 with the last 64 bits of a number."""
    value &= MASK
    if value >= 2**63:
        return value - 2**64
    return value


def test_a_name_is_the_sum_of_the_hashes_of_tokens_and_positions():
    ids = [7, 3, 7, 250_000, 0]
    hashes = [slow_hash(token, position) for position, token in enumerate(ids)]
    sums = [sum(hashes[:end]) for end in range(1, 6)]
    assert token_names(ids, range(5)).tolist() == [signed(value) for value in hashes]
    assert prefix_names(ids).tolist() == [signed(value) for value in sums]


def test_the_same_tokens_in_another_order_have_another_name():
    """A name identifies routing: equal names would give one text the experts of another."""
    texts = list(permutations([5, 6, 7, 8]))
    assert len({prefix_names(text)[-1] for text in texts}) == len(texts)


def test_a_branch_of_a_pass_has_the_names_of_its_whole_text():
    prompt = [4, 5]
    branches = [[6, 7], [6, 8], [5, 7]]
    tokens = collate([TokenTree(prompt, branches)], 0, torch.device("cpu"))
    names = set(tokens.names_BS().reshape(-1).tolist())
    for branch in branches:
        read = [*prompt, *branch[:-1]]  # the last token of a text is not read
        assert set(prefix_names(read).tolist()) <= names
