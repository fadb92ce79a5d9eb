"""Arguments are checked with a message of one sentence; `tests/api/test_wrong_calls.py` has the calls."""

from __future__ import annotations

import pytest
import torch

from moe_lab.config.arguments import checked_ids, checked_settings, checked_texts, shown
from moe_lab.errors import ConfigError


def test_texts_and_ids_are_lists():
    assert checked_texts("text", "a") == ["a"] and checked_texts("text", ("a", "b")) == ["a", "b"]
    assert checked_ids("ids", torch.tensor([1, 2]), 3, 2) == checked_ids("ids", (1, 2), 3, 2) == [1, 2]
    with pytest.raises(ConfigError, match=r"ids=\[True\]"):
        checked_ids("ids", [True], 3, 2)


def test_settings_are_those_of_the_command():
    assert checked_settings(seed=3, batch_size="auto") == {"seed": 3, "batch_size": "auto"}
    with pytest.raises(ConfigError, match="seed=-1"):
        checked_settings(seed=-1)


def test_a_long_value_is_cut_off():
    assert len(shown(list(range(100)))) == 60 and "\n" not in shown(torch.ones(9, 9))
