"""`moe_lab.run` is the command: the same files and numbers, as objects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import moe_lab
from moe_lab.api import run as module
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, ResultsError
from moe_lab.methods import get_method
from moe_lab.results.significance import holm
from tests.support.command import run_command


@pytest.mark.slow
def test_results_are_those_of_the_command(tmp_path, capsys, tiny_olmoe_dir):
    shared = [f"model.path={tiny_olmoe_dir}", f"output_dir={tmp_path}"]
    keys = ["-m", "method=roe", "method.n=2,3", "task=toy_choice", "limit=4", *shared]
    results = moe_lab.run(keys)
    assert [found["moe_lab"]["method"]["config"]["n"] for found in results] == [2, 3]
    command = run_command(capsys, *keys)
    paths = command.out.splitlines()[-2:]
    for path, found, run in zip(paths, results, results.runs, strict=True):
        stored = json.loads(Path(path).read_text())
        assert stored == found and str(run.folder) in path
    frame = results.frame()
    assert list(frame["method"]) == ["roe", "roe"] and list(frame["seed"]) == [0, 0]
    assert list(frame["value"]) == [found["results"]["toy_choice"]["acc,none"] for found in results]
    assert frame["difference"].notna().all() and len(frame["interval"][0]) == 2
    assert list(frame["method.n"]) == [2, 3] and "model.path" not in frame and "limit" not in frame
    assert list(frame["p_holm"]) == holm(list(frame["p_mcnemar"]))
    assert all(f"{p:.4f}" in command.out for p in frame["p_holm"]) and "p (Holm)" in command.out


def test_settings_that_differ_are_columns():
    """Broken by rows of `method.n=2,4` that nothing tells apart, and by a column that is the same in all rows."""
    roe = get_method("roe").Config
    configs = [Config(method=roe(name="roe", n=n), seed=seed) for n, seed in ((2, 0), (4, 1))]
    assert module._differing(configs) == [{"method.n": 2}, {"method.n": 4}]
    base = Config(method=get_method("base").Config(name="base"), limit=3)
    assert module._differing([base, *configs]) == [
        {"limit": 3, "method.n": None},
        {"limit": None, "method.n": 2},
        {"limit": None, "method.n": 4},
    ]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["method=rou"], "Did you mean 'roe'"),
        (["mode=plan"], "mode=plan"),
        (["--cfg", "job"], "--cfg job only prints"),
        (["--help"], "--help only prints"),
        (["experiment=roe/figure3"], "experiment=roe/figure3"),
        (["method=pretrain-tiny"], "makes a model"),
    ],
)
def test_what_has_no_results_is_refused(overrides, says):
    with pytest.raises(ConfigError, match=says):
        moe_lab.run(overrides)


@pytest.mark.slow
def test_a_run_that_fails_raises(tmp_path, monkeypatch, tiny_olmoe_dir):
    import moe_lab.runs.execute

    def fail(*args):
        raise ResultsError("no space left")

    keys = ["method=base", f"model.path={tiny_olmoe_dir}", "limit=2", f"output_dir={tmp_path}"]
    monkeypatch.setattr(moe_lab.runs.execute, "evaluate_run", fail)
    with pytest.raises(ResultsError, match="1 of 1 runs have no result"):
        moe_lab.run(keys)
    monkeypatch.undo()
    assert len(moe_lab.run(keys)) == 1
    monkeypatch.setattr(moe_lab.runs.execute, "evaluate_run", fail)
    with pytest.raises(ResultsError, match="A run or a study failed.* Earlier results stay stored"):
        moe_lab.run([*keys, "rerun=true"])


def test_a_study_that_fails_raises(monkeypatch):
    """Broken by "0 of 0 runs have no result"."""
    monkeypatch.setattr(module, "dispatch", lambda cells, overrides: 1)
    monkeypatch.setattr(module, "jobs_of", lambda configs, compute: [])
    with pytest.raises(ResultsError, match="A run or a study failed"):
        moe_lab.run(["method=base"])
