"""The gain of routes that noise proposes over the router's own route, by the model's confidence.

A route takes k experts in every MoE layer. Its score is the probability of the text's next token (arXiv 2605.07260).

T = tokens, n = routes (0 is the router's own), N = documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from moe_lab.metrics.intervals import ratio
from moe_lab.results.measured import Value
from moe_lab.results.shapes import typed
from moe_lab.results.stored_files import whole_mapping

BANDS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
"""Bounds of the bands: the probability of the most probable token under the router's own route."""


SCHEMA_VERSION = 1
FILE = "counterfactual.json"
ARRAYS = "counterfactual.safetensors"
"""The scores of every token (docs/counterfactual.md)."""
KEYS = {"n", "temperatures", "documents", "all", "bands"}


@dataclass(frozen=True)
class ScoredTokens:
    """The tokens of all documents."""

    log_probs_Tn: np.ndarray
    """Of the text's token, under each route."""
    changed_Tn: np.ndarray
    """bool: whether the route has other experts than the router's own."""
    ensemble_T: np.ndarray
    """Log-probability of the text's token under the mean over all routes."""
    confidence_T: np.ndarray
    document_T: np.ndarray
    """int64, from 0."""

    def where(self, chosen_T: np.ndarray) -> ScoredTokens:
        """The tokens whose `chosen_T` is true."""
        return ScoredTokens(**{name: values[chosen_T] for name, values in vars(self).items()})


def counterfactual(tokens: ScoredTokens) -> dict[str, Any]:
    """{"all", "bands"}: the summary of all tokens, and of each band's tokens with the band's bounds `from` and `to`.

    A band includes its lower bound; the last band also includes its upper bound.
    """
    band_T = np.clip(np.searchsorted(BANDS, tokens.confidence_T, side="right") - 1, 0, len(BANDS) - 2)
    bands = [
        {"from": low, "to": high} | summary(tokens.where(band_T == number))
        for number, (low, high) in enumerate(pairwise(BANDS))
    ]
    return {"all": summary(tokens), "bands": bands}


def summary(tokens: ScoredTokens) -> dict[str, Any]:
    """Means over tokens in nats, with 95% intervals over documents (docs/counterfactual.md)."""
    proposed_Tr = tokens.log_probs_Tn[:, 1:].astype(np.float64)
    changed_Tr = tokens.changed_Tn[:, 1:]
    own_T = tokens.log_probs_Tn[:, 0].astype(np.float64)
    of_T = {
        "mean": proposed_Tr.mean(axis=1),
        "roe": tokens.ensemble_T.astype(np.float64),
        "best": proposed_Tr.max(axis=1),
        "worst": proposed_Tr.min(axis=1),
    }
    gain_Tr = proposed_Tr - own_T[:, None]
    wins_Tr = np.where(changed_Tr, (gain_Tr > 0) + 0.5 * (gain_Tr == 0), 0.0)
    documents = _Documents(tokens.document_T)
    return {
        "tokens": len(own_T),
        "documents": documents.count,
        "changed": documents.mean(changed_Tr.mean(axis=1)),
        "log_prob": {name: _mean(value_T) for name, value_T in ({"router": own_T} | of_T).items()},
        "gain": {name: documents.mean(value_T - own_T) for name, value_T in of_T.items()},
        "chance": documents.mean(of_T["best"] - of_T["mean"]),
        "has_better": documents.mean((of_T["best"] > own_T).astype(np.float64)),
        "better": documents.mean(wins_Tr.sum(axis=1), changed_Tr.sum(axis=1)),
        "best_of": best_of(gain_Tr),
    }


def best_of(gain_Tr: np.ndarray) -> dict[str, float | None]:
    """{m: mean over tokens of the expected best of m of the r proposals, drawn without replacement}, m = 1, 2, 4 ... r.

    The j-th smallest of r values is the largest of m drawn ones with probability C(j - 1, m - 1) / C(r, m).
    """
    r = gain_Tr.shape[1]
    sizes = [*(2**power for power in range(r.bit_length()) if 2**power < r), r]
    if not len(gain_Tr):
        return dict.fromkeys(map(str, sizes))
    ascending_r = np.sort(gain_Tr, axis=1).mean(axis=0)
    return {
        str(m): float(ascending_r @ np.array([comb(j, m - 1) / comb(r, m) for j in range(r)])) for m in sizes
    }


class _Documents:
    def __init__(self, document_T: np.ndarray):
        known, self._place_T = np.unique(document_T, return_inverse=True)
        self.count = len(known)

    def mean(self, value_T: np.ndarray, weight_T: np.ndarray | None = None) -> dict[str, Any]:
        """The sum of the values over that of the weights, which are 1 by default, as `ratio`."""
        weight_T = np.ones(len(value_T)) if weight_T is None else weight_T
        sums = [np.bincount(self._place_T, each, minlength=self.count) for each in (value_T, weight_T)]
        return ratio(sums[0], sums[1]).to_json()


def _mean(value_T: np.ndarray) -> float | None:
    return float(value_T.mean()) if len(value_T) else None


@dataclass(frozen=True)
class Band:
    """The results in counterfactual.json for the tokens of a band, in nats (`summary`)."""

    confidence: str
    """The bounds of the band, or "all"."""
    tokens: int
    router: float | None
    """Mean log-probability of the text's tokens."""
    gain: dict[str, Value]
    """The gain of the `mean` route, of `roe`, of the `best` and of the `worst` route."""
    chance: Value
    """The gain of the best route, if the router chose no better than noise."""
    better: Value
    """The share of changed routes that are better."""


def stored_counterfactual(folder: Path, run_id: str, commit: str | None) -> list[Band] | None:
    """A run's results for all its tokens, then for each band that has tokens.

    None if counterfactual.json is incomplete, or belongs to another run or hub commit.
    """
    content = whole_mapping(folder / FILE) or {}
    expected = {"run_id": run_id, "schema_version": SCHEMA_VERSION, "commit": commit}
    is_own = {key: content.get(key) for key in expected} == expected
    if not is_own or not content.keys() >= KEYS or not (folder / ARRAYS).is_file():
        return None
    named = {"all": content["all"]} | {f"{one['from']:g} to {one['to']:g}": one for one in content["bands"]}
    return [
        typed(Band, one | {"confidence": name, "router": one["log_prob"]["router"]})
        for name, one in named.items()
        if one["tokens"] or name == "all"
    ]
