"""Breaks if the way from the command line to a run, or from a stored run to its row, enters other
files than docs/architecture.md lists."""

import re
import sys
import traceback
from pathlib import Path
from types import FrameType

import pytest

import moe_lab
from moe_lab.reports.scores import CommandTable
from moe_lab.reports.terminal import print_scores
from moe_lab.results.model import RunResult
from moe_lab.routing import noise
from tests.support.command import FakeRuns, install, run_command
from tests.support.stored_results import results_of

PACKAGE = f"{Path(moe_lab.__file__).parent}/"
DOCUMENT = Path(PACKAGE).parent / "docs" / "architecture.md"
CONFIG = (
    "catalog",
    "cells",
    "doors",
    "hydra_source",
    "mandatory",
    "overrides",
    "progress",
    "streams",
    "terminal",
    "text_keys",
)
BESIDE = {
    "models/load_options.py",
    "tasks/loading.py",
    "results/code_digest.py",
    "runs/plan.py",
    "runs/planning/disk.py",
    "runs/planning/memory_notes.py",
    "runs/planning/memory.py",
    "runs/planning/rows.py",
    "runs/planning/state.py",
    "runs/planning/workload.py",
    *(f"config/{name}.py" for name in CONFIG),
}
"""The keys of model.load, the cache of tasks, edited modules of tasks, an import hook, what follows
on the runs, where options of plug-ins are, how overrides are quoted, which keys are texts, what is
printed where, which bars are hidden, which keys are a library's."""


def documented() -> set[str]:
    """The files of the numbered list, each the first of its line."""
    text = DOCUMENT.read_text(encoding="utf-8")
    way = text[text.index("## The way of a configuration") :].partition("\n\nA study")[0]
    return {
        re.findall(r"`(\w[\w/]+\.py)`", step)[0]
        for step in re.split(r"^\d+\. ", way, flags=re.M)[1:]
    }


def test_ten_files_lead_to_a_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    runs = install(monkeypatch, FakeRuns())
    entered = set()

    def enter(frame: FrameType, event: str, arg: object) -> None:
        file = frame.f_code.co_filename
        if (
            event == "call"
            and not runs.prepared
            and file.startswith(PACKAGE)
            and not in_import(frame)
        ):
            entered.add(file.removeprefix(PACKAGE))

    sys.setprofile(enter)
    try:
        ended = run_command(capsys, "mode=plan", "method=roe", "model=tiny", "task=toy_math")
    finally:
        sys.setprofile(None)
    assert ended.code == 0
    assert runs.prepared
    assert len(documented()) <= 10
    assert entered - BESIDE == documented() - {"runs/prepare.py"}, "prepare is a stand-in here"


@pytest.mark.slow
def test_fourteen_files_lead_to_the_first_noise(capsys, monkeypatch, tmp_path):
    stack: list[str] = []

    def stop(*args: object) -> None:
        stack.extend(
            frame.filename for frame in traceback.extract_stack() if PACKAGE in frame.filename
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(noise, "_noise_at", stop)
    overrides = "method=roe model=tiny task=toy_math limit=1 baseline=false".split()
    run_command(capsys, *overrides, f"output_dir={tmp_path}")
    files = list(dict.fromkeys(file.removeprefix(PACKAGE) for file in stack))
    text = DOCUMENT.read_text(encoding="utf-8")
    way = text[text.index("## The way to the first noise") :].partition("\n## ")[0]
    on_the_way = [file for file in files if file not in BESIDE]
    assert on_the_way == re.findall(r"`(\w[\w/]+\.py)`", way)
    assert len(on_the_way) <= 14


def test_four_files_lead_from_a_stored_run_to_its_row(monkeypatch):
    stack: list[str] = []
    interval = RunResult.interval

    def watched(self: RunResult, *place: str) -> object:
        stack.extend(
            frame.filename for frame in traceback.extract_stack() if PACKAGE in frame.filename
        )
        return interval(self, *place)

    monkeypatch.setattr(RunResult, "interval", watched)
    print_scores(CommandTable([results_of()]))
    files = list(dict.fromkeys(file.removeprefix(PACKAGE) for file in stack))
    page = DOCUMENT.read_text(encoding="utf-8")
    way = page.partition("From a stored run to its row")[2].partition("\n\n")[0]
    assert [*files, "results/model.py"] == re.findall(r"`(\w[\w/]+\.py)`", way)
    assert len(files) < 4


def in_import(frame: FrameType | None) -> bool:
    """Whether a frame is a module's or a class's body, or is called by one."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False
