"""What an output folder holds. Broken by a run that is not listed, by settings that do not tell runs apart, and by a
wrong state."""

from __future__ import annotations

import json
import os
from pathlib import Path

import yaml

from moe_lab.reports.pages.listing_page import stored_entries, texts
from moe_lab.results.folder import RunFolder
from tests.support.stored_runs import generated_line, stored_run

LINES = [generated_line(0, ("1", 1.0)), generated_line(1, ("2", 0.0))]


def roe(output: Path, run_id: str, n: int, *typed: str):
    config = {"name": "roe", "n": n, "cache": "clean"}
    return stored_run(output, run_id, LINES, config=config, overrides=["method=roe", f"method.n={n}", *typed])


def write(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def started(output: Path, name: str, **status) -> Path:
    """The folder of a run without a result."""
    folder = output / "runs" / name
    config = {
        "model": {"name": "tiny"},
        "method": {"name": "c3po", "k": 3},
        "task": {"name": ["t", "u"]},
        "seed": 1,
    }
    folder.mkdir(parents=True)
    if status:
        write(folder / "status.json", status)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "overrides.yaml").write_text(yaml.safe_dump(["method=c3po", "task=t,u"]))
    return folder


def test_runs_differ_by_the_settings_that_are_shown(tmp_path):
    for number, (n, typed) in enumerate(
        [(4, ["limit=2"]), (8, ["limit=2", "num_fewshot=3"]), (8, ["device=cpu"])]
    ):
        roe(tmp_path, f"{number}" * 64, n, *typed)
    found = {entry.folder[-1]: entry for entry in stored_entries(tmp_path)[0]}
    assert {place: list(texts(entry.settings)) for place, entry in found.items()} == {
        "0": ["n=4"],
        "1": ["n=8", "num_fewshot=3"],
        "2": ["n=8"],
    }
    first = found["0"]
    assert (first.kind, first.model, first.method, first.task, first.n) == ("run", "tiny", "roe", "t", 2)
    assert (first.score, first.metric, first.state) == (0.5, "exact_match,none", "done")
    assert first.command == "python -m moe_lab method=roe method.n=4 limit=2"


def test_what_has_no_result_says_why(tmp_path):
    started(tmp_path, "broken", reason="RuntimeError: the disk is full")
    os.utime(started(tmp_path, "killed"), (1767323045,) * 2)
    folder = started(tmp_path, "alive")
    (tmp_path / "runs" / "empty").mkdir()
    with RunFolder(folder, "x").held():
        found = {entry.folder: entry for entry in stored_entries(tmp_path)[0]}
    assert {place: entry.state for place, entry in found.items()} == {
        "runs/broken": "RuntimeError: the disk is full",
        "runs/killed": "stopped",
        "runs/alive": "running",
    }
    one = found["runs/killed"]
    assert (one.task, one.seed, one.n, one.changed) == ("t, u", 1, None, "2026-01-02 03:04")


def test_studies_and_trainings_are_listed(tmp_path):
    study = {"model": "tiny", "task": "t", "tuning": "tpe", "metric": "perplexity", "n": 8, "seed": 0}
    write(tmp_path / "studies" / "s" / "study.json", study | {"finished": 12})
    (tmp_path / "studies" / "s" / "best.yaml").write_text("{trials: 12, score: 1.5}")
    training = {
        "method": "pretrain",
        "recipe": {"experts": 8},
        "seed": 2,
        "steps": 250,
        "validation": {"loss": 1.25},
    }
    write(tmp_path / "models" / "tiny-pretrain-01234567" / "training.json", training)
    write(
        tmp_path / "models" / "tiny-pretrain-76543210" / "identity.json",
        {"method": "pretrain", "recipe": {"experts": 9}},
    )
    found = {entry.folder: entry for entry in stored_entries(tmp_path)[0]}
    one = found["studies/s"]
    assert (one.method, one.n, one.score, one.state) == ("tuning=tpe", 12, 1.5, "done")
    made, cut = found["models/tiny-pretrain-01234567"], found["models/tiny-pretrain-76543210"]
    assert (made.model, made.n, made.score, made.settings, made.state) == (
        "tiny",
        250,
        1.25,
        {"experts": 8},
        "done",
    )
    assert (cut.score, cut.settings, cut.state) == (None, {"experts": 9}, "stopped")


def test_paths_are_short():
    given = {
        "temperature": "/a/b/studies/s/best.yaml",
        "data": "/a/b",
        "layers": [1, 2],
        "samples": "0," * 60,
    }
    assert list(texts(given)) == [
        "temperature=…/s/best.yaml",
        "data=/a/b",
        "layers=[1, 2]",
        "samples=" + "0," * 30 + "…",
    ]
