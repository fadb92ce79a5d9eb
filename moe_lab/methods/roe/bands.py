"""The bands of adaptive RoE: `method.adaptive` and `method.bands`, and what results.json says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from moe_lab.config.validators import LARGEST, one_of
from moe_lab.errors import ConfigError

_MEASURES = ("margin", "entropy")
_EXAMPLE = "method.adaptive=margin 'method.bands=[[0.2,32],[0.6,8]]'"


def check_bands(config: Any) -> None:
    """Raise ConfigError where `adaptive` and `bands` of RoE's `Config` are impossible."""
    one_of("method.adaptive", config.adaptive, _MEASURES)
    if (config.adaptive is None) != (config.bands is None):
        given, missing = ("bands", "adaptive") if config.adaptive is None else ("adaptive", "bands")
        raise ConfigError(
            f"method.{given} needs method.{missing}: a measure and its bands, e.g.\n{_EXAMPLE}."
        )
    if config.bands is None:
        return
    if config.cache != "clean":
        raise ConfigError(
            f"method.adaptive={config.adaptive} needs method.cache=clean: with method.cache={config.cache} every row "
            "reads every token, whatever the clean one says."
        )
    if not _is_list(config.bands) or not all(_is_band(band, config.n) for band in config.bands):
        raise ConfigError(
            f"method.bands={config.bands}: must be a list of [bound, samples], with bounds of at least 0 and from 1 to "
            f"method.n={config.n} samples, e.g. {_EXAMPLE}."
        )
    rising = config.adaptive == "margin"
    for (bound, _), (next_bound, _) in pairwise(config.bands):
        if bound >= next_bound if rising else bound <= next_bound:
            raise ConfigError(
                f"method.bands={config.bands}: the most unsure band comes first, so with method.adaptive="
                f"{config.adaptive} bounds {'rise' if rising else 'fall'} from band to band."
            )


def _is_list(bands: Any) -> bool:
    return isinstance(bands, Sequence) and not isinstance(bands, str) and len(bands) > 0


def _is_band(band: Any, n: int) -> bool:
    if not isinstance(band, Sequence) or len(band) != 2:
        return False
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in band):
        return False
    return 0 <= band[0] <= LARGEST and 1 <= band[1] <= n and float(band[1]).is_integer()


def bands_of(config: Any) -> list[tuple[float, int]]:
    """(bound, samples) of each band of RoE's `Config`."""
    return [(float(bound), int(samples)) for bound, samples in config.bands]


def adaptive_block(config: Any, counters: Mapping[str, int]) -> dict[str, Any]:
    """`{"adaptive": ...}` for the block `roe` of results.json; empty where every token takes n samples.

    Args:
        counters: `EngineLM.cost`.
    """
    if config.adaptive is None:
        return {}
    bands = bands_of(config)
    samples = [*(each for _, each in bands), 1]
    tokens = [counters.get(f"band_{band}", 0) for band in range(len(samples))]
    used = sum(count * each for count, each in zip(tokens, samples, strict=True))
    full = sum(tokens) * config.n
    return {
        "adaptive": {
            "measure": config.adaptive,
            "bands": [list(band) for band in bands],
            "tokens": tokens,
            "rows_used": used,
            "rows_full": full,
            "share_of_rows": used / full if full else None,
        }
    }


def adaptive_footnotes(block: Mapping[str, Any]) -> list[str]:
    """The line below a table for the block `roe` of a run."""
    adaptive = block.get("adaptive")
    if not adaptive or adaptive["share_of_rows"] is None:
        return []
    share, bands = adaptive["share_of_rows"], adaptive["bands"]
    return [
        f"adaptive, {adaptive['measure']} {bands}: {share:.1%} of the rows of n={block['n']} were computed, "
        f"{adaptive['rows_used']:,} of {adaptive['rows_full']:,}."
    ]
