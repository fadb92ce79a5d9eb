"""The files of a run's counterfactual routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moe_lab.results.stored_files import whole_mapping

SCHEMA_VERSION = 1
FILE = "counterfactual.json"
ARRAYS = "counterfactual.safetensors"
"""The scores of every token (docs/counterfactual.md)."""
KEYS = {"n", "temperatures", "documents", "all", "bands"}


def stored_counterfactual(folder: Path, run_id: str, commit: str | None) -> dict[str, Any] | None:
    """The content of a run's counterfactual.json if it is complete and of this run and hub commit, else None."""
    content = whole_mapping(folder / FILE) or {}
    expected = {"run_id": run_id, "schema_version": SCHEMA_VERSION, "commit": commit}
    is_own = {key: content.get(key) for key in expected} == expected
    return content if is_own and content.keys() >= KEYS and (folder / ARRAYS).is_file() else None


def shown_bands(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The summaries of all tokens and of each band that has any, with the band's `confidence` in words."""
    bands = [{"confidence": f"{one['from']:g} to {one['to']:g}"} | one for one in content["bands"]]
    return [{"confidence": "all"} | content["all"], *(band for band in bands if band["tokens"])]
