"""Breaks if an answer is lost, invented, served to another run, or counted twice.

Breaks if run.log loses a record or a warning of lm-eval, or if a full disk under it prints
a traceback or stops the run.

Breaks if a log is not read back as it was written, or if a lost one passes for an empty one.

Breaks if rounding is taken for a difference, or a difference for rounding.
"""

import json
import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moe_lab.errors import ResultsError
from moe_lab.results.model import RunResult
from moe_lab.results.response_log import ResponseLog, request_key
from moe_lab.results.rounding import Rounding, bound
from moe_lab.results.run_log import RunLog
from moe_lab.results.samples import (
    Sample,
    check_samples,
    logged_values,
    metric_values,
    read_samples,
    write_samples,
)
from moe_lab.results.stored_files import DamagedError
from moe_lab.runs.run_log import run_log
from tests.support.stored_results import result_with

HEADER = {"run_id": "a", "commit": None, "versions": {"lm_eval": "1"}}
KEY = request_key("loglikelihood", ("context", " answer"), 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.jsonl"


def write(path, **answers):
    """A closed log with these answers, each of whose questions had 3 tokens."""
    log = ResponseLog(path, HEADER)
    for key, response in answers.items():
        log.answer(key, response, {"tokens_in": 3})
    log.close()
    return log


def test_answers_come_back_as_they_were(path):
    answers: dict[str, Any] = {
        "a": (-1.0 / 3, True),
        "b": -12345.678901234567,
        "c": "text\nwith \u2028 lines \ud83d",
        "d": (-1e-300, False),
    }
    write(path, **answers)
    reopened = ResponseLog(path, HEADER)
    assert {key: reopened[key] for key in answers} == answers
    assert isinstance(reopened["a"], tuple)


def test_keys_tell_requests_apart():
    requests = [
        ("loglikelihood", ("a", "b"), 0),
        ("loglikelihood", ("ab", ""), 0),
        ("loglikelihood", ("a", "b"), 1),
        ("generate_until", ("a", {"until": ["b"]}), 0),
        ("generate_until", ("a", {"until": ["c"]}), 0),
        ("loglikelihood_rolling", ("a",), 0),
    ]
    assert len({request_key(*request) for request in requests}) == len(requests)
    assert request_key("g", ("a", {"x": 1, "y": 2}), 0) == request_key(
        "g", ("a", {"y": 2, "x": 1}), 0
    )


def test_a_torn_last_line_is_cut_and_later_answers_are_whole(path):
    write(path, a="first", b="second")
    whole = path.read_bytes()
    # every place where a kill can tear the line
    for length in range(whole.rindex(b'{"key"'), len(whole)):
        path.write_bytes(whole[:length])
        log = ResponseLog(path, HEADER)
        assert "a" in log
        assert "b" not in log
        assert log.cost == {"tokens_in": 3}
        log.close()
        write(path, b="second")
        assert path.read_bytes() == whole


def test_a_torn_header_starts_anew(path):
    ResponseLog(path, HEADER).close()
    path.write_bytes(path.read_bytes()[:10])
    write(path, a="x")
    assert "a" in ResponseLog(path, HEADER)


@pytest.mark.parametrize("damage", ["not json", "[]", '"key"', '{"key": "b"}', '{"response": "x"}'])
def test_a_damaged_line_is_a_missing_answer(path, damage):
    write(path, a="x")
    with path.open("a") as file:
        file.write(damage + "\n")
    assert len(ResponseLog(path, HEADER)) == 1


@pytest.mark.parametrize(
    "other_header",
    [
        HEADER | {"run_id": "b"},
        HEADER | {"commit": "c0ffee"},
        HEADER | {"versions": {"lm_eval": "2"}},
    ],
)
def test_another_header_is_never_served_nor_erased(path, other_header):
    log = write(path, **{KEY: "x"})
    assert log.set_aside is None
    earlier = path.read_bytes()
    path.with_name("responses.1.old.jsonl").write_text("of another time")
    log = ResponseLog(path, other_header)
    assert KEY not in log
    assert log.cost == {}
    log.close()
    assert json.loads(path.read_text().splitlines()[0]) == {"header": other_header}
    assert log.set_aside == path.with_name("responses.2.old.jsonl")
    assert log.set_aside.read_bytes() == earlier
    assert path.with_name("responses.1.old.jsonl").read_text() == "of another time"


def test_answers_of_other_processes_of_this_run_alone_are_moved_into_the_log(path):
    def write_rank(rank: int, header: dict[str, Any], answer: str) -> Path:
        rank_path = path.with_name(f"responses.{rank}.jsonl")
        log = ResponseLog(rank_path, header)
        log.answer(f"of rank {rank}", answer, {"tokens_in": 3})
        log.close()
        return rank_path

    write(path, mine="x")
    same_run = write_rank(1, HEADER, "y")
    another_run = write_rank(2, HEADER | {"run_id": "b"}, "z")
    another_content = another_run.read_bytes()

    for log in (ResponseLog(path, HEADER), ResponseLog(path, HEADER)):
        assert dict(log) == {"mine": "x", "of rank 1": "y"}
        assert log.cost == {"tokens_in": 6}
        log.close()
    assert not same_run.exists()
    assert another_run.read_bytes() == another_content


def test_costs_add_up_over_sessions_and_peaks_do_not(path):
    for peak in (5, 9, 7):
        log = ResponseLog(path, HEADER)
        log.spend({"load_seconds": 1.5}, {"device": "cpu"})
        log.answer(f"{peak}", "x", {"tokens_in": 10, "peak_memory_bytes": peak})
        log.keep_session_info({"peak": peak})
        log.close()
    log = ResponseLog(path, HEADER)
    assert log.cost == {"load_seconds": 4.5, "tokens_in": 30, "peak_memory_bytes": 9}
    assert log.environment == {"device": "cpu"}
    assert log.session_info == {"peak": 7}


def test_a_full_disk_is_an_error_and_keeps_what_was_answered(path, monkeypatch):
    log = ResponseLog(path, HEADER)
    log.answer("a", "x", {})

    class Full:
        """Takes half a line, as a disk does."""

        def __init__(self, file: Any):
            self.file = file

        def write(self, content: bytes) -> int:
            return self.file.write(content[: len(content) // 2])

        def close(self) -> None:
            self.file.close()

    monkeypatch.setattr(log, "_file", Full(log._file))
    with pytest.raises(ResultsError, match="No space left on device"):
        log.answer("b", "y", {})
    log.close()
    log = ResponseLog(path, HEADER)
    assert "a" in log
    assert "b" not in log


def test_an_unwritable_log_is_named(tmp_path):
    (tmp_path / "responses.jsonl").mkdir()
    with pytest.raises(ResultsError, match=r"responses\.jsonl could not be written"):
        ResponseLog(tmp_path / "responses.jsonl", HEADER)


@pytest.fixture
def logger():
    return logging.Logger("test")


def test_records_are_appended(tmp_path, logger):
    for text in ("one", "half a pair \ud83d", "no https://user:password@host/x"):
        handler = RunLog(tmp_path / "run.log")
        logger.addHandler(handler)
        logger.info(text)
        logger.removeHandler(handler)
        handler.close()
    assert (tmp_path / "run.log").read_text() == "one\nhalf a pair \\ud83d\nno https://...@host/x\n"


def test_a_full_disk_does_not_end_the_run(logger, capsys):
    handler = RunLog(Path("/dev/full"))
    logger.addHandler(handler)
    logger.info("one")
    handler.close()
    assert capsys.readouterr().err == ""


def test_a_warning_of_lm_eval_is_in_the_runs_log_and_once_on_stderr(tmp_path, capsys):
    harness = logging.getLogger("lm_eval")
    before = harness.level, list(harness.handlers)
    with run_log(tmp_path):
        for document in ("{'question': 1}", "{'question': 2}"):
            logging.getLogger("lm_eval.api.task").warning(
                f"Label index is out of range, Sample:\n{document}"
            )
    assert capsys.readouterr().err == "Warning: Label index is out of range, Sample:\n"
    assert (tmp_path / "run.log").read_text().count("Label index") == 2
    assert (harness.level, harness.handlers) == before


def result_in(folder: Path, documents: Iterable[int]) -> RunResult:
    """The result that a log is checked against."""
    scores = {"alias": "t", "acc,none": 1.0, "acc_stderr,none": 0.1}
    return result_with({"t": scores}, folder, samples={"t": list(documents)})


def sample(document: int, text: str, **metrics: Any) -> dict[str, Any]:
    sample_line = {
        "doc_id": document,
        "doc": {},
        "target": 1,
        "arguments": [(text, {})],
        "resps": [[text]],
    }
    return sample_line | {
        "filtered_resps": [text],
        "filter": "none",
        "metrics": list(metrics),
        **metrics,
    }


def test_answers_with_odd_line_breaks_come_back(tmp_path):
    texts = ["a\u2028b", "c\x85d", "e\nf\r\n", "\x1c", "\u00e9", "\ud83d alone"]
    write_samples(tmp_path, {"t": [sample(i, text, acc=1.0) for i, text in enumerate(texts)]})
    samples_read = read_samples(result_in(tmp_path, range(len(texts))))["t"]
    assert [read_sample.filtered[0] for read_sample in samples_read] == texts
    assert [read_sample.requests[0][0] for read_sample in samples_read] == texts


def test_values_per_document_and_filter(tmp_path):
    lines = [sample(3, "x", acc=1, ppl=(-2.5, 4)), sample(5, "y", acc=0, ppl=(-1.5, 2))]
    expected = {"acc,none": {3: 1, 5: 0}, "ppl,none": {3: (-2.5, 4), 5: (-1.5, 2)}}
    assert logged_values(lines) == expected
    write_samples(tmp_path, {"t": lines})
    assert metric_values(read_samples(result_in(tmp_path, [3, 5]))["t"]) == expected, (
        "tuples stay tuples"
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
        LINE % 0 + LINE % 1 + '{"doc_id": 1}\n',
        LINE % 0 + LINE % 0,
        (LINE % 0 + LINE % 1).replace("none", "other"),
    ],
)
def test_a_log_that_lacks_a_document_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "samples_t.jsonl").write_text(content)
    with pytest.raises(
        DamagedError, match=r"samples_t\.jsonl is damaged: .*Remove .*results\.json"
    ):
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
    """For perplexities, log-likelihoods and numbers of words count; texts have to be the same."""
    equal = Rounding("float32").equal
    near = 0.9 * bound(50.0, 9)
    far = 1.1 * bound(50.0, 9)
    assert equal(-50.0, -50.0 + near, 9)
    assert not equal(-50.0, -50.0 + far, 9)
    assert equal((-50.0, 80), (-50.0 + near, 80), 9)
    assert not equal((-50.0, 80), (-50.0, 81), 9)
    assert not equal((-50.0, 80), (-50.0, 80, 1), 9)
    assert equal("a", "a", 9)
    assert not equal("a", "b", 9)


def test_half_precision_has_the_measured_bound_alone():
    """Broken by the bound of float32 in another dtype."""
    for dtype in ("bfloat16", "float16", None):
        assert Rounding(dtype, 0.3).equal(-50.0, -50.3 + 1e-6, 9)
        assert not Rounding(dtype, 0.3).equal(-50, -50.4, 9)
        assert not Rounding(dtype).equal(-50.0, -50.0 + 1e-9, 9)
        assert Rounding(dtype).equal(-50.0, -50.0, 9)


def test_each_example_has_its_words():
    large_difference = 0.9 * bound(1.0, 50)
    assert Rounding("float32").equal_examples(
        [0.0, 0.0], [large_difference, large_difference], [50, 1]
    ) == [True, False]


def test_scored_words_are_those_of_the_scored_text():
    def words(*requests) -> int:
        return Sample(document=0, filter="none", values={}, requests=requests).scored_words

    assert words(("a text of five words",)) == 5
    assert words(("a long question", " yes"), ("a long question", " no it is")) == 3
    assert words(("a prompt", {"until": []})) == 0
    assert words(("", "")) == 1
    assert words() == 0


def no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def test_every_json_reader_takes_the_log_of_values_that_are_no_numbers(tmp_path):
    line = sample(0, "x", acc=math.nan, loglikelihood=-math.inf, ppl=(math.inf, 4), exact=1)
    line["doc"] = {"hint": math.nan, "weights": [1.0, np.float32("nan")]}
    write_samples(tmp_path, {"t": [line]})
    [text] = (tmp_path / "samples_t.jsonl").read_text().splitlines()
    written = json.loads(text, parse_constant=no_constant)
    assert written["doc"] == {"hint": None, "weights": [1.0, None]}
    assert (written["acc"], written["loglikelihood"], written["ppl"]) == (None, None, [None, 4])
    [read_sample] = read_samples(result_in(tmp_path, [0]))["t"]
    assert math.isnan(read_sample.values["acc"])
    assert read_sample.values["exact"] == 1


class Answered(str):
    log_probability: float


def test_log_probabilities_of_generated_answers_come_back(path):
    answer = Answered("a text")
    answer.log_probability = -1 / 3
    write(path, a=answer, b="an answer of lm-eval's own code", c=(-1.5, True))
    log = ResponseLog(path, HEADER)
    assert log.log_probabilities == {"a": -1 / 3}
    assert log["a"] == "a text"
    log.answer("a", "asked again by other code", {})
    assert log.log_probabilities == {}
    log.close()
    assert ResponseLog(path, HEADER).log_probabilities == {}
