"""Breaks if an answer is lost, invented, served to another run, or counted twice.

Breaks if run.log loses a record or a warning of lm-eval, or if a full disk under it prints a traceback or stops the run.
"""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.errors import ResultsError
from moe_lab.results.logs import ResponseLog, RunLog, request_key
from moe_lab.runs.execute import _run_log

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
    given: dict[str, Any] = {
        "a": (-1.0 / 3, True),
        "b": -12345.678901234567,
        "c": "text\nwith \u2028 lines \ud83d",
        "d": (-1e-300, False),
    }
    write(path, **given)
    again = ResponseLog(path, HEADER)
    assert {key: again[key] for key in given} == given
    assert isinstance(again["a"], tuple)


def test_keys_tell_requests_apart():
    asked = [
        ("loglikelihood", ("a", "b"), 0),
        ("loglikelihood", ("ab", ""), 0),
        ("loglikelihood", ("a", "b"), 1),
        ("generate_until", ("a", {"until": ["b"]}), 0),
        ("generate_until", ("a", {"until": ["c"]}), 0),
        ("loglikelihood_rolling", ("a",), 0),
    ]
    assert len({request_key(*one) for one in asked}) == len(asked)
    assert request_key("g", ("a", {"x": 1, "y": 2}), 0) == request_key("g", ("a", {"y": 2, "x": 1}), 0)


def test_a_torn_last_line_is_cut_and_later_answers_are_whole(path):
    write(path, a="first", b="second")
    whole = path.read_bytes()
    for length in range(whole.rindex(b'{"key"'), len(whole)):  # every place where a kill can tear the line
        path.write_bytes(whole[:length])
        log = ResponseLog(path, HEADER)
        assert "a" in log and "b" not in log and log.cost == {"tokens_in": 3}
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
    "other",
    [HEADER | {"run_id": "b"}, HEADER | {"commit": "c0ffee"}, HEADER | {"versions": {"lm_eval": "2"}}],
)
def test_another_header_is_never_served_nor_erased(path, other):
    log = write(path, **{KEY: "x"})
    assert log.set_aside is None
    earlier = path.read_bytes()
    path.with_name("responses.1.old.jsonl").write_text("of another time")
    log = ResponseLog(path, other)
    assert KEY not in log and log.cost == {}
    log.close()
    assert json.loads(path.read_text().splitlines()[0]) == {"header": other}
    assert log.set_aside == path.with_name("responses.2.old.jsonl") and log.set_aside.read_bytes() == earlier
    assert path.with_name("responses.1.old.jsonl").read_text() == "of another time"


def test_costs_add_up_over_sessions_and_peaks_do_not(path):
    for peak in (5, 9, 7):
        log = ResponseLog(path, HEADER)
        log.spend({"load_seconds": 1.5}, {"device": "cpu"})
        log.answer(f"{peak}", "x", {"tokens_in": 10, "peak_memory_bytes": peak})
        log.keep_session_info({"peak": peak})
        log.close()
    log = ResponseLog(path, HEADER)
    assert log.cost == {"load_seconds": 4.5, "tokens_in": 30, "peak_memory_bytes": 9}
    assert log.environment == {"device": "cpu"} and log.session_info == {"peak": 7}


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
    assert "a" in log and "b" not in log


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
    run: Any = SimpleNamespace(folder=tmp_path)
    with _run_log(run):
        for document in ("{'question': 1}", "{'question': 2}"):
            logging.getLogger("lm_eval.api.task").warning(f"Label index is out of range, Sample:\n{document}")
    assert capsys.readouterr().err == "Warning: Label index is out of range, Sample:\n"
    assert (tmp_path / "run.log").read_text().count("Label index") == 2
    assert (harness.level, harness.handlers) == before
