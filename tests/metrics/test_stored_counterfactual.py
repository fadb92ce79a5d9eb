"""Broken by: routes of another run or of half a file that are taken for whole, a band without tokens that is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moe_lab.metrics.stored_counterfactual import ARRAYS, FILE, shown_bands, stored_counterfactual
from tests.support.counterfactual import write_routes
from tests.support.stored_results import RESULTS


def test_whole_files_of_the_run_are_read(tmp_path: Path) -> None:
    content = write_routes(tmp_path, RESULTS)
    assert stored_counterfactual(tmp_path, "abc", None) == content
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
    shown = shown_bands(content)
    assert [(band["confidence"], band["tokens"]) for band in shown] == [
        ("all", 30),
        ("0.4 to 0.6", 12),
        ("0.9 to 1", 18),
    ]
    assert shown[1]["gain"] == content["bands"][2]["gain"]
