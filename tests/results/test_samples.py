"""Breaks if a log is not read back as it was written, or if a lost one passes for an empty one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_lab.errors import ResultsError
from moe_lab.results.samples import metric_values, read_samples, write_samples


def sample(document: int, text: str, **metrics: Any) -> dict[str, Any]:
    kept = {"doc_id": document, "doc": {}, "target": 1, "arguments": [(text, {})], "resps": [[text]]}
    return kept | {"filtered_resps": [text], "filter": "none", "metrics": list(metrics), **metrics}


def test_answers_with_odd_line_breaks_come_back(tmp_path: Path) -> None:
    texts = ["a\u2028b", "c\x85d", "e\nf\r\n", "\x1c", "\u00e9", "\ud83d alone"]
    write_samples(tmp_path, {"t": [sample(i, text, acc=1.0) for i, text in enumerate(texts)]})
    again = read_samples(tmp_path, ["t"])["t"]
    assert [one["filtered_resps"][0] for one in again] == texts
    assert [one["arguments"]["gen_args_0"]["arg_0"] for one in again] == texts


def test_values_per_document_and_filter(tmp_path: Path) -> None:
    lines = [sample(3, "x", acc=1, ppl=(-2.5, 4)), sample(5, "y", acc=0, ppl=(-1.5, 2))]
    expected = {"acc,none": {3: 1, 5: 0}, "ppl,none": {3: (-2.5, 4), 5: (-1.5, 2)}}
    assert metric_values(lines) == expected
    write_samples(tmp_path, {"t": lines})
    assert metric_values(read_samples(tmp_path, ["t"])["t"]) == expected, "tuples come back as tuples"


def test_a_lost_or_damaged_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"samples_t\.jsonl cannot be read.*rerun=true"):
        read_samples(tmp_path, ["t"])
    (tmp_path / "samples_t.jsonl").write_text("{")
    with pytest.raises(ResultsError, match="cannot be read"):
        read_samples(tmp_path, ["t"])
