"""A model whose replies are given."""

from collections.abc import Sequence
from typing import Any

import pytest


class FixedSampler:
    """Takes the place of `Sampler`, and chooses the given tokens in every sequence."""

    near_ties = 0

    def __init__(self, tokens: Sequence[int]):
        self.tokens = tokens

    def __call__(self, scores_AV: Any, states: Any) -> list[int]:
        return [self.tokens[len(state.generated)] for state in states]


def reply_with_tokens(monkeypatch: pytest.MonkeyPatch, tokens: Sequence[int]) -> None:
    """Let the engine's reply to every prompt be these tokens."""
    monkeypatch.setattr("moe_lab.engine.lm_answers.Sampler", lambda *settings: FixedSampler(tokens))
