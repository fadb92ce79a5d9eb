"""How far two results may lie apart that are equal but for rounding.

In float32 the bound is computed. Each operation rounds by up to EPS / 2 of its result, in another
direction on another machine, with another number of threads or another batch. A forward pass is
some 256 such operations deep; errors of random sign add up to about sqrt(256) = 16 of them. What is
rounded is of the size of a token's log-probability, log(vocabulary) where nothing is known, and the
error of a sum over tokens grows with what is summed.

In bfloat16 and float16 such a bound would hide effects of routing. There the bound is measured: the
largest difference per example between two batch sizes of the base model
(`moe_lab.runs.evaluation.run_lm_eval`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

EPS = 2.0**-23
ROUNDINGS = 16
VOCABULARY = 2**18
"""The largest vocabulary of a published model."""


def bound(size: float, tokens: int = 1, vocabulary: int = VOCABULARY) -> float:
    """The largest difference of two float32 numbers of this size that rounding explains.

    Args:
        tokens: the number of tokens that the numbers are sums over.
    """
    return ROUNDINGS * EPS * max(tokens * math.log(vocabulary), size)


@dataclass(frozen=True)
class Rounding:
    """Which values of one example in two runs are equal within rounding."""

    dtype: str | None
    """Of the weights; None where it is not known."""
    measured: float | None = None
    """In other dtypes than float32: the measured bound in nats. Without it only equal values are
    equal."""

    def equal(self, value: Any, base_value: Any, words: int) -> bool:
        """Whether two values of a metric are equal within rounding: numbers, or lists of numbers
        and texts.

        Args:
            words: in the text whose log-likelihood the values come from (`Sample.scored_words`); 0
                for values of generated texts, which rounding does not reach.
        """
        if isinstance(value, list | tuple) and isinstance(base_value, list | tuple):
            if len(value) != len(base_value):
                return False
            pairs = zip(value, base_value, strict=True)
            return all(self.equal(item, base_item, words) for item, base_item in pairs)
        if value == base_value or not words:
            return bool(value == base_value)
        if not isinstance(value, int | float) or not isinstance(base_value, int | float):
            return False
        apart = abs(value - base_value)
        if self.dtype == "float32":
            return apart <= bound(max(abs(value), abs(base_value)), words)
        return self.measured is not None and apart <= self.measured

    def equal_examples(
        self, values: Sequence[Any], baseline: Sequence[Any], words: Sequence[int]
    ) -> list[bool]:
        """For each example: whether its values in two runs are equal (`equal`). `words` has one
        number per example."""
        examples = zip(values, baseline, words, strict=True)
        return [self.equal(value, base_value, count) for value, base_value, count in examples]
