"""Prompts of the safety sets of Bianchi et al. 2023 (Safety-Tuned LLaMAs), which MoE-Bench's Tables 9 and 10 use."""

from __future__ import annotations

from typing import Any

from moe_lab.errors import TaskError


def local_only(*, folder: str, source: str, documents: int, **_: Any) -> None:
    """The `custom_dataset` of tasks without a known hub data set. Raises TaskError asking for `data_dir`."""
    raise TaskError(
        f"The safety prompts need data_dir=<folder> with {folder}/test.jsonl: {documents} lines such as\n"
        '{"instruction": "..."}\n'
        f"The documents are those of {source}."
    )
