"""Breaks if a log is not read back as it was written, or if a lost one passes for an empty one.

Breaks if rounding is taken for a difference, or a difference for rounding.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from moe_lab.results.model import RunResult
from moe_lab.results.rounding import Rounding, bound
from moe_lab.results.samples import (
    Sample,
    check_samples,
    logged_values,
    metric_values,
    read_samples,
    write_samples,
)
from moe_lab.results.stored_files import DamagedError
from tests.support.stored_results import result_with


def result_in(folder: Path, documents: Iterable[int]) -> RunResult:
    """The result that a log is checked against."""
    scores = {"alias": "t", "acc,none": 1.0, "acc_stderr,none": 0.1}
    return result_with({"t": scores}, folder, samples={"t": list(documents)})


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
    assert metric_values(read_samples(result_in(tmp_path, [3, 5]))["t"]) == expected, "tuples stay tuples"


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
        LINE % 0 + LINE % 1 + '{"doc_id": 1}\n',
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


ROUNDING = 16 * 2.0**-23


def test_the_bound_grows_with_the_number_and_with_the_words():
    assert bound(1.0, vocabulary=300) == pytest.approx(ROUNDING * math.log(300))
    assert bound(50.0, vocabulary=300) == pytest.approx(ROUNDING * 50)
    assert bound(50.0, tokens=100, vocabulary=300) == pytest.approx(ROUNDING * 100 * math.log(300))


def test_float32_values_are_equal_within_the_bound():
    """Of perplexities both the log-likelihood and the number of words count; texts have to be the same."""
    equal = Rounding("float32").equal
    near, far = 0.9 * bound(50.0, 9), 1.1 * bound(50.0, 9)
    assert equal(-50.0, -50.0 + near, 9) and not equal(-50.0, -50.0 + far, 9)
    assert equal((-50.0, 80), (-50.0 + near, 80), 9) and not equal((-50.0, 80), (-50.0, 81), 9)
    assert not equal((-50.0, 80), (-50.0, 80, 1), 9)
    assert equal("a", "a", 9) and not equal("a", "b", 9)


def test_values_of_generated_texts_are_equal_or_not():
    assert Rounding("float32").equal(0.5, 0.5, 0) and not Rounding("float32").equal(0.5, 0.5 + 1e-9, 0)


def test_half_precision_has_the_measured_bound_alone():
    """Broken by the bound of float32 in another dtype."""
    for dtype in ("bfloat16", "float16", None):
        assert Rounding(dtype, 0.3).equal(-50.0, -50.3 + 1e-6, 9)
        assert not Rounding(dtype, 0.3).equal(-50, -50.4, 9)
        assert not Rounding(dtype).equal(-50.0, -50.0 + 1e-9, 9) and Rounding(dtype).equal(-50.0, -50.0, 9)


def test_each_example_has_its_words():
    apart = 0.9 * bound(1.0, 50)
    assert Rounding("float32").equals([0.0, 0.0], [apart, apart], [50, 1]) == [True, False]


def test_scored_words_are_those_of_the_scored_text():
    def words(*requests) -> int:
        return Sample(document=0, filter="none", values={}, requests=requests).scored_words

    assert words(("a text of five words",)) == 5
    assert words(("a long question", " yes"), ("a long question", " no it is")) == 3
    assert words(("a prompt", {"until": []})) == 0
    assert words(("", "")) == 1 and words() == 0
