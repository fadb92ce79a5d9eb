"""`moe_lab.run`, `report`, `plan` and `compare` are the command: the same files and numbers, as objects."""

import json
from pathlib import Path

import pytest

import moe_lab
from moe_lab.errors import ConfigError, ResultsError
from moe_lab.results.significance import holm
from tests.support.command import run_command
from tests.support.lm_eval_logs import samples_of, write_log


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
    assert list(frame["method"]) == ["base", "roe", "roe"] and list(frame["seed"])[1:] == [0, 0]
    scores = [found["results"]["toy_choice"]["acc,none"] for found in results]
    assert list(frame["value"])[1:] == scores and list(frame["method.n"])[1:] == [2, 3]
    own = frame[frame["method"] == "roe"]
    assert list(own["p_holm"]) == holm(list(own["p"])) and set(own["family"]) == {2}
    assert all(f"{p:.4f}" in command.out for p in own["p_holm"]) and "p (Holm)" in command.out


@pytest.mark.slow
def test_a_report_has_what_is_stored(tmp_path, tiny_olmoe_dir):
    """Broken by a run that is computed, and by a missing one that hides the others."""
    keys = ["-m", "method=roe", "task=toy_choice", "limit=2", f"model.path={tiny_olmoe_dir}"]
    keys.append(f"output_dir={tmp_path}")
    with pytest.raises(ConfigError, match="Nothing of this is stored yet"):
        moe_lab.report([*keys, "method.n=2"], quiet=True)
    made = moe_lab.run([*keys, "method.n=2"], quiet=True)
    (tmp_path / "report.html").unlink()
    found = moe_lab.report([*keys, "method.n=2,3"], quiet=True)
    assert list(found) == list(made) and len(found.missing) == 1 and (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_an_experiment_has_its_tables(tmp_path, capsys, tiny_olmoe_dir):
    """Broken by another p than that of the table, or by a cell that is left out."""
    (tmp_path / "conf" / "experiments").mkdir(parents=True)
    text = f"""title: T
source: S
scales: {{tiny: {{grid: {{task: [toy_choice], method: [base, [roe, method.n=2], [roe, method.n=3]]}},
  set: [limit=4, "model.path={tiny_olmoe_dir}", seeds=2]}}}}
rows: [method, method.n]
columns: [task]
metric: headline
paper: []
"""
    (tmp_path / "conf" / "experiments" / "mine.yaml").write_text(text)
    keys = ["--config-dir", str(tmp_path / "conf"), "experiment=mine", f"output_dir={tmp_path}/o"]
    results = moe_lab.run(keys, quiet=True)
    [table] = results.tables.values()
    assert len(results) == 5 and len(table) == 3 and list(results.tables) == ["mine"]
    stored = json.loads((tmp_path / "o" / "tables" / "mine-tiny.json").read_text())
    own = table[table["method"] == "roe"]
    assert list(own["seeds"]) == [2, 2] and own["p_holm"].notna().all() and len(stored["rows"]) == 3
    means = results.frame().dropna(subset="p_holm")
    assert sorted(means["p_holm"]) == sorted(own["p_holm"]) and set(own["family"]) == {2}
    again = moe_lab.report(keys, quiet=True)
    assert again.tables["mine"].equals(table) and capsys.readouterr().out == ""


@pytest.mark.slow
def test_quiet_prints_nothing(tmp_path, capfd, tiny_olmoe_dir):
    """Broken by a table, a progress line or a bar in a notebook that asked for none."""
    keys = ["method=roe", "method.n=2", "task=toy_choice", "limit=2", f"model.path={tiny_olmoe_dir}"]
    keys += [f"output_dir={tmp_path}", "device=cpu"]
    found = moe_lab.run(keys, quiet=True)
    assert capfd.readouterr() == ("", "") and len(found) == 1
    moe_lab.run(keys)
    assert "Results" in capfd.readouterr().out


@pytest.mark.slow
def test_a_run_that_fails_raises(tmp_path, monkeypatch, tiny_olmoe_dir):
    import moe_lab.runs.execute

    def fail(*args):
        raise ResultsError("no space left")

    keys = ["method=base", f"model.path={tiny_olmoe_dir}", "limit=2", f"output_dir={tmp_path}"]
    monkeypatch.setattr(moe_lab.runs.execute, "evaluate_run", fail)
    with pytest.raises(ResultsError, match="A run or a study failed. The errors are above"):
        moe_lab.run(keys)
    with pytest.raises(ResultsError, match="The errors:\n.*no space left"):
        moe_lab.run(keys, quiet=True)
    monkeypatch.undo()
    assert len(moe_lab.run(keys)) == 1
    monkeypatch.setattr(moe_lab.runs.execute, "evaluate_run", fail)
    with pytest.raises(ResultsError, match="A run or a study failed.* Earlier results stay stored"):
        moe_lab.run([*keys, "rerun=true"])


# plan: no file is written


@pytest.mark.slow
def test_the_plan_is_that_of_the_command(tmp_path, capsys, tiny_olmoe_dir):
    keys = ["-m", "method=roe", "method.n=2,3", "task=toy_choice", "limit=4", f"model.path={tiny_olmoe_dir}"]
    keys.append(f"output_dir={tmp_path}")
    plan = moe_lab.plan(keys)
    frame = plan.frame()
    assert capsys.readouterr().out == "" and not any(tmp_path.iterdir())
    assert list(frame["method"]) == ["base", "roe", "roe"] and list(frame["method.n"])[1:] == [2, 3]
    assert set(frame["examples"]) == {4} and set(frame["state"]) == {"missing"} and "baseline" not in frame
    command = run_command(capsys, *keys, "mode=plan").out
    for run, tokens in zip(frame["run"], frame["tokens"], strict=True):
        assert run in command and f"{tokens:,}" in command and run in repr(plan)
    assert plan.notes[0].startswith("To run: 3") and plan.notes[0] in " ".join(command.split())
    assert "To run: 3" in plan._repr_html_() and len(plan) == 3


@pytest.mark.slow
def test_an_experiment_is_planned(tmp_path):
    plan = moe_lab.plan(["experiment=roe/figure3", "scale=tiny", f"output_dir={tmp_path}"])
    assert {"roe", "base"} <= set(plan.frame()["method"]) and not any(tmp_path.iterdir())


# compare

MINE, THEIRS = samples_of(acc=[0.0, 0.0, 0.0, 1.0]), samples_of(acc=[1.0, 1.0, 0.0, 0.0])


def test_the_rows_are_those_of_the_file(tmp_path):
    for name, lines in (("mine", MINE), ("theirs", THEIRS), ("same", MINE)):
        write_log(tmp_path / name, {"t": lines})
    others = (str(tmp_path / "theirs"), tmp_path / "same")
    found = moe_lab.compare(tmp_path / "mine", *others, output_dir=tmp_path)
    frame, rows = found.frame(), json.loads(found.file.read_text())["scores"]
    assert list(frame["run"]) == ["b1", "b2"] == [row["run"] for row in rows] and len(found) == 2
    assert list(frame["p_holm"]) == [row["p_holm"] for row in rows]
    assert list(frame["to_right"]) == [2, 0] and list(frame["difference"]) == [0.25, 0.0]
    assert found.page.suffix == ".html" and found.page.exists()
    assert "b1: " in repr(found) and "p (Holm)" in found._repr_html_()
    write_log(tmp_path / "others", {"u": THEIRS})
    with pytest.raises(ConfigError, match="no task in common"):
        moe_lab.compare(tmp_path / "mine", tmp_path / "others", output_dir=tmp_path)
