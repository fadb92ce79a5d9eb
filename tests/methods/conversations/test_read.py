"""Broken by: a generated data set that trains on a question of its task, or has another split in the place of its own."""

from __future__ import annotations

import pytest

from moe_lab.config.schema import Config
from moe_lab.errors import TaskError
from moe_lab.methods.conversations.read import TOY_SIZES, read_data
from moe_lab.tasks.toy.differences import differences


def test_subtractions_are_trained_on_and_held_out_by_their_splits():
    data = read_data(Config(), "toy_subtract", held_out=20)
    assert len(data.train) == TOY_SIZES["toy_subtract"] and len(data.validation) == 20
    asked = {row["question"] for split in ("test", "validation") for row in differences(split, 10_000)}
    assert {one[0]["content"] for one in data.validation} < asked
    assert not {one[0]["content"] for one in data.train} & asked


def test_the_first_conversations_are_the_same_for_any_number():
    assert (
        read_data(Config(), "toy_subtract", size=30).train
        == read_data(Config(), "toy_subtract", size=60).train[:30]
    )


def test_the_message_for_an_unknown_name_lists_the_generated_data_sets():
    with pytest.raises(TaskError, match="=toy_substract is unknown. Use toy, toy_subtract, lima, owner/name"):
        read_data(Config(), "toy_substract")
