"""The options of RoE: `additional_config={"roe": {"n": 8, "temperature": 0.1}}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

CACHES = ("clean", "standard")


@dataclass(frozen=True)
class Options:
    """The options, named as those of `moe_lab.RoE`."""

    n: int = 32
    """Routing samples of each token; sample 0 has no noise."""
    temperature: float | Sequence[float] = 0.1
    """A number: for all MoE layers but the first and the last. A list: one for each MoE layer."""
    cache: str = "clean"
    """What samples attend to.

    "clean": all samples share one history without noise. "standard": each sample has its own.
    """
    seed: int = 0
    """Key of the noise."""

    def __post_init__(self) -> None:
        at_least_2 = "an integer of at least 2; leave roe out for the base model"
        _require(_is_int(self.n) and self.n >= 2, "n", self.n, at_least_2)
        numbers = "a number of at least 0, or a list of them with one for each MoE layer"
        _require(
            all(map(_is_temperature, self._list or [self.temperature])),
            "temperature",
            self.temperature,
            numbers,
        )
        _require(self.cache in CACHES, "cache", self.cache, " or ".join(map(repr, CACHES)))
        _require(_is_int(self.seed), "seed", self.seed, "an integer")

    @property
    def _list(self) -> list[Any] | None:
        return list(self.temperature) if isinstance(self.temperature, list | tuple) else None

    @classmethod
    def of(cls, vllm_config: Any) -> Options | None:
        """The options of an engine; None for an engine without RoE."""
        additional = dict(vllm_config.additional_config or {})
        if "policy" in additional:
            raise ValueError(
                f"additional_config policy={additional['policy']!r}: the plug-in runs RoE alone, "
                "since its passes know the keys of RoE's samples and of no other tokens. Use "
                "method=policy of moe_lab."
            )
        given = additional.get("roe")
        if given is None:
            return None
        _require(
            isinstance(given, dict), "", given, 'a dictionary like {"n": 8, "temperature": 0.1}'
        )
        known = [field.name for field in fields(cls)]
        for key in given:
            _require(key in known, key, given[key], f"left out: the options are {', '.join(known)}")
        return cls(**given)

    def temperatures(self, moe_layers: int) -> list[float]:
        """One temperature for each MoE layer. A number skips the first and the last layer."""
        given = self._list or [0, *[self.temperature] * (moe_layers - 2), 0]
        right = len(given) == moe_layers and (self._list is not None or moe_layers > 2)
        wanted = f"a list of {moe_layers}: one for each MoE layer of the model"
        _require(right, "temperature", self.temperature, wanted)
        return [float(value) for value in given]

    @property
    def skipped(self) -> int:
        """MoE layers before the first one that may have noise."""
        return 0 if self._list else 1


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_temperature(value: Any) -> bool:
    return (_is_int(value) or isinstance(value, float)) and value >= 0


def _require(right: bool, key: str, value: Any, must: str) -> None:
    if not right:
        raise ValueError(f"additional_config roe{key and '.'}{key}={value!r}: must be {must}.")
