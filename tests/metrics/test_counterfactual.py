"""The summaries of routes against loops over tokens, and the best of m against all draws of m routes.

Broken by: a mean over documents in the place of tokens, the router's own route among the proposals, ties that count as
better routes, a token in two bands or in none, an incomplete file or another run's file that is read, an empty band.
"""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moe_lab.metrics.counterfactual import (
    ARRAYS,
    BANDS,
    FILE,
    ScoredTokens,
    best_of,
    counterfactual,
    stored_counterfactual,
    summary,
)
from moe_lab.metrics.intervals import ratio
from tests.support.counterfactual import write_routes
from tests.support.stored_results import RESULTS


def some_tokens(T: int = 60, n: int = 6, seed: int = 0) -> ScoredTokens:
    rng = np.random.default_rng(seed)
    changed_Tn = rng.random((T, n)) < 0.6
    changed_Tn[:, 0] = False
    log_probs_Tn = np.where(changed_Tn, -rng.exponential(size=(T, n)), 0).astype(np.float32)
    own_T = -rng.exponential(size=T).astype(np.float32)
    log_probs_Tn = np.where(changed_Tn, log_probs_Tn, own_T[:, None])
    log_probs_Tn[::7, 2] = own_T[::7]  # other experts, the same value
    confidence_T = rng.choice([0.0, 0.1, 0.2, 0.5, 0.8999, 0.9, 0.95, 1.0, 1.0000001], size=T)
    ensemble_T = np.log(np.exp(log_probs_Tn).mean(axis=1))
    return ScoredTokens(log_probs_Tn, changed_Tn, ensemble_T, confidence_T, rng.integers(4, size=T) * 3)


def by_document(tokens: ScoredTokens, of: Any, over: Any = lambda row, changed: 1) -> dict[str, Any]:
    """`ratio` of sums that a loop makes: `of` and `over` get a token's log-probabilities and what is changed."""
    sums: dict[int, list[float]] = {}
    for t, document in enumerate(tokens.document_T.tolist()):
        row, changed = tokens.log_probs_Tn[t].tolist(), tokens.changed_Tn[t].tolist()
        own = sums.setdefault(document, [0.0, 0.0])
        own[0] += of(row, changed)
        own[1] += over(row, changed)
    return ratio(*np.array(list(sums.values())).T).to_json()


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["value"] == pytest.approx(expected["value"])
    assert found["ci95"] == pytest.approx(expected["ci95"])


def test_summaries_equal_loops_over_tokens() -> None:
    tokens = some_tokens()
    found = summary(tokens)
    assert (found["tokens"], found["documents"]) == (60, 4)
    gains = {
        "mean": lambda row, changed: sum(row[1:]) / len(row[1:]) - row[0],
        "best": lambda row, changed: max(row[1:]) - row[0],
        "worst": lambda row, changed: min(row[1:]) - row[0],
        "roe": lambda row, changed: float(np.log(np.mean(np.exp(row)))) - row[0],
    }
    for name, gain in gains.items():
        assert_same(found["gain"][name], by_document(tokens, gain))
        difference = found["log_prob"][name] - found["log_prob"]["router"]
        assert difference == pytest.approx(found["gain"][name]["value"])
    assert_same(
        found["chance"], by_document(tokens, lambda row, changed: max(row[1:]) - sum(row[1:]) / len(row[1:]))
    )
    assert_same(found["has_better"], by_document(tokens, lambda row, changed: max(row[1:]) > row[0]))
    wins = by_document(
        tokens,
        lambda row, changed: sum(
            (one > row[0]) + (one == row[0]) / 2 for one, differs in zip(row, changed, strict=True) if differs
        ),
        lambda row, changed: sum(changed),
    )
    assert_same(found["better"], wins)
    assert_same(found["changed"], by_document(tokens, lambda row, changed: sum(changed[1:]) / 5))


@pytest.mark.parametrize(("r", "sizes"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8])])
def test_the_best_of_m_is_the_mean_over_all_draws_of_m(r: int, sizes: list[int]) -> None:
    gain_Tr = np.random.default_rng(r).normal(size=(3, r))
    expected = {
        str(m): np.mean([max(draw) for gains in gain_Tr.tolist() for draw in combinations(gains, m)])
        for m in sizes
    }
    assert best_of(gain_Tr) == pytest.approx(expected)


def test_the_best_of_one_is_the_mean_and_of_all_the_best() -> None:
    found = summary(some_tokens())
    assert found["best_of"]["1"] == pytest.approx(found["gain"]["mean"]["value"])
    assert found["best_of"]["5"] == pytest.approx(found["gain"]["best"]["value"])


def test_every_token_is_in_one_band() -> None:
    tokens = some_tokens()
    found = counterfactual(tokens)
    assert [(band["from"], band["to"]) for band in found["bands"]] == list(pairwise(BANDS))
    for band in found["bands"]:
        last = band["to"] == 1.0
        chosen_T = np.array([band["from"] <= c and (c < band["to"] or last) for c in tokens.confidence_T])
        assert band["tokens"] == chosen_T.sum()
        expected = summary(tokens.where(chosen_T))
        assert {key: band[key] for key in expected} == expected
    assert sum(band["tokens"] for band in found["bands"]) == found["all"]["tokens"] == 60


def test_an_empty_band_has_null_for_every_number() -> None:
    tokens = some_tokens()
    found = summary(tokens.where(np.zeros(60, dtype=bool)))
    assert (found["tokens"], found["documents"]) == (0, 0)
    assert set(found["log_prob"].values()) == set(found["best_of"].values()) == {None}
    assert found["gain"]["best"] == found["better"] == {"value": None, "ci95": None}


def test_where_all_routes_are_the_routers_own_nothing_is_gained() -> None:
    tokens = some_tokens()
    own_Tn = np.repeat(tokens.log_probs_Tn[:, :1], 6, axis=1)
    same = ScoredTokens(
        own_Tn, np.zeros_like(own_Tn, dtype=bool), own_Tn[:, 0], tokens.confidence_T, tokens.document_T
    )
    found = summary(same)
    assert {gain["value"] for gain in found["gain"].values()} == {0.0}
    assert found["has_better"]["value"] == found["changed"]["value"] == 0.0
    assert found["better"]["value"] is None
    assert list(found["best_of"].values()) == pytest.approx([0.0] * 4)


def test_whole_files_of_the_run_are_read(tmp_path: Path) -> None:
    write_routes(tmp_path, RESULTS)
    assert stored_counterfactual(tmp_path, "abc", None)
    assert stored_counterfactual(tmp_path, "another", None) is None
    assert stored_counterfactual(tmp_path, "abc", "c0ffee") is None
    assert stored_counterfactual(tmp_path / "nowhere", "abc", None) is None


@pytest.mark.parametrize("key", ["all", "bands", "schema_version"])
def test_a_file_that_lacks_a_key_is_not_whole(tmp_path: Path, key: str) -> None:
    content = write_routes(tmp_path, RESULTS)
    (tmp_path / FILE).write_text(json.dumps({name: content[name] for name in content if name != key}))
    assert stored_counterfactual(tmp_path, "abc", None) is None


def test_without_its_arrays_it_is_not_whole(tmp_path: Path) -> None:
    write_routes(tmp_path, RESULTS)
    (tmp_path / ARRAYS).unlink()
    assert stored_counterfactual(tmp_path, "abc", None) is None


def test_bands_with_tokens_are_shown_behind_all(tmp_path: Path) -> None:
    content = write_routes(tmp_path, RESULTS)
    shown = stored_counterfactual(tmp_path, "abc", None)
    assert shown is not None
    assert [(band.confidence, band.tokens) for band in shown] == [
        ("all", 30),
        ("0.4 to 0.6", 12),
        ("0.9 to 1", 18),
    ]
    assert {name: gain.to_json() for name, gain in shown[1].gain.items()} == content["bands"][2]["gain"]
