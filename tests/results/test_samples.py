"""Breaks if a log is not read back as it was written, or if a lost one passes for an empty one."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from moe_lab.results.model import RunResult
from moe_lab.results.samples import check_samples, logged_values, metric_values, read_samples, write_samples
from moe_lab.results.stored_files import DamagedError


def result_in(folder: Path, documents: Iterable[int]) -> RunResult:
    """The result that a log is checked against."""
    scores = {"alias": "t", "acc,none": 1.0, "acc_stderr,none": 0.1}
    return RunResult({"results": {"t": scores}, "moe_lab": {"samples": {"t": list(documents)}}}, folder)


def sample(document: int, text: str, **metrics: Any) -> dict[str, Any]:
    kept = {"doc_id": document, "doc": {}, "target": 1, "arguments": [(text, {})], "resps": [[text]]}
    return kept | {"filtered_resps": [text], "filter": "none", "metrics": list(metrics), **metrics}


def test_answers_with_odd_line_breaks_come_back(tmp_path):
    texts = ["a\u2028b", "c\x85d", "e\nf\r\n", "\x1c", "\u00e9", "\ud83d alone"]
    write_samples(tmp_path, {"t": [sample(i, text, acc=1.0) for i, text in enumerate(texts)]})
    again = read_samples(result_in(tmp_path, range(len(texts))))["t"]
    assert [one.filtered[0] for one in again] == texts
    assert [one.requests[0][0] for one in again] == texts


def test_values_per_document_and_filter(tmp_path):
    lines = [sample(3, "x", acc=1, ppl=(-2.5, 4)), sample(5, "y", acc=0, ppl=(-1.5, 2))]
    expected = {"acc,none": {3: 1, 5: 0}, "ppl,none": {3: (-2.5, 4), 5: (-1.5, 2)}}
    assert logged_values(lines) == expected
    write_samples(tmp_path, {"t": lines})
    assert metric_values(read_samples(result_in(tmp_path, [3, 5]))["t"]) == expected, (
        "tuples come back as tuples"
    )


LINE = '{"doc_id": %d, "filter": "none", "metrics": ["acc"], "acc": 1.0}\n'


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{",
        LINE % 0,
        LINE % 0 + "[]\n",
        LINE % 0 + "[" * 100_000 + "\n",
        LINE % 0 + '{"doc_id": 1}\n',
        LINE % 0 + LINE % 0,
        (LINE % 0 + LINE % 1).replace("none", "other"),
    ],
)
def test_a_log_that_lacks_a_document_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "samples_t.jsonl").write_text(content)
    with pytest.raises(DamagedError, match=r"samples_t\.jsonl is damaged: .*Remove .*results\.json"):
        read_samples(result_in(tmp_path, [0, 1]))


def test_missing_lines_are_counted_without_parsing(tmp_path):
    result = result_in(tmp_path, [0, 1])
    with pytest.raises(DamagedError, match="No such file"):
        check_samples(result)
    (tmp_path / "samples_t.jsonl").write_text(LINE % 0)
    with pytest.raises(DamagedError, match="1 lines, and 2 are expected"):
        check_samples(result)
    (tmp_path / "samples_t.jsonl").write_text(LINE % 0 + LINE % 1)
    check_samples(result)
