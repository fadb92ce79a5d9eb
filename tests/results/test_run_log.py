"""Breaks if run.log loses a record or a warning of lm-eval, or if a full disk under it prints a traceback or stops the run."""

from __future__ import annotations

import errno
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.results.logs import RunLog
from moe_lab.runs.evaluation.evaluate import _run_log


@pytest.fixture
def logger() -> logging.Logger:
    found = logging.Logger("test")
    return found


def test_records_are_appended(tmp_path, logger):
    for text in ("one", "half a pair \ud83d", "no https://user:password@host/x"):
        handler = RunLog(tmp_path / "run.log")
        logger.addHandler(handler)
        logger.info(text)
        logger.removeHandler(handler)
        handler.close()
    assert (tmp_path / "run.log").read_text() == "one\nhalf a pair \\ud83d\nno https://...@host/x\n"


def test_a_full_disk_is_one_line(tmp_path, logger, capsys, monkeypatch):
    class Full:
        def write(self, content: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(logging, "raiseExceptions", True)
    handler: Any = RunLog(tmp_path / "run.log")
    handler._file.close()
    handler._file = Full()
    logger.addHandler(handler)
    logger.info("one")
    logger.info("two")
    handler.close()
    told = capsys.readouterr().err
    assert told == f"{tmp_path / 'run.log'} could not be written: No space left on device. The run goes on.\n"


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
