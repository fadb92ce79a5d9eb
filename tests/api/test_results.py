"""`moe_lab.run`, `report` and `plan` are the command: the same files and numbers,
as objects, data frames and plots.

Broken by: a base run without a row, two meanings of one column, a p that is not the terminal's,
an example that is lost, a hash of 64 digits in what is shown.
"""

import json
import re
from pathlib import Path

import pytest

import moe_lab
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError, ResultsError
from moe_lab.methods import get_method
from moe_lab.reports import config_settings
from moe_lab.results.significance import holm
from tests.support.command import run_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def keys(folder, tiny_olmoe_dir):
    """Two tasks, two numbers of samples."""
    keys = ["-m", "method=roe", "method.n=2,3", "task=toy_choice,toy_math", "limit=4"]
    return [
        *keys,
        f"model.path={tiny_olmoe_dir}",
        f"output_dir={folder}",
        "gen_kwargs={max_gen_toks: 4}",
    ]


@pytest.fixture(scope="module")
def grid(keys):
    return moe_lab.run(keys, quiet=True)


@pytest.fixture(scope="module")
def seeds(folder, tiny_olmoe_dir):
    keys = [
        "method=roe",
        "method.n=2",
        "method.temperature=3",
        "task=toy_text",
        "limit=3",
        "seeds=3",
    ]
    return moe_lab.run([*keys, f"model.path={tiny_olmoe_dir}", f"output_dir={folder}"], quiet=True)


@pytest.mark.slow
def test_the_frame_has_base_rows_intervals_p_cost_and_every_setting_on_demand(grid):
    frame = grid.frame()
    assert list(frame["method"]).count("base") == 2
    assert len(frame) == 6
    base = frame[frame["method"] == "base"]
    roe_rows = frame[frame["method"] == "roe"]
    assert set(frame.columns) >= {"method.n", "examples"}
    assert set(frame["examples"]) == {4}
    assert base["method.n"].isna().all()
    assert list(roe_rows["method.n"].unique()) == [2, 3]
    assert base["compared_with"].isna().all()
    assert set(roe_rows["compared_with"]) == {"base"}
    assert (frame["low"] <= frame["value"]).all()
    assert (frame["value"] <= frame["high"]).all()
    assert (roe_rows["difference_low"] <= roe_rows["difference"]).all()
    assert set(roe_rows["test"]) == {"McNemar"}
    assert list(roe_rows["p_holm"]) == holm(list(roe_rows["p"]))
    assert set(roe_rows["family"]) == {4}
    costs = roe_rows["cost/tokens_in"] / roe_rows["method.n"]
    assert (costs > 0).all()
    assert base["cost/wall_seconds"].notna().all()
    all_settings = grid.frame(all_settings=True)
    assert "limit" not in frame
    assert "task.category" not in frame
    roe_rows = all_settings[all_settings["method"] == "roe"]
    assert list(all_settings["limit"]) == [4] * 6
    assert set(roe_rows["method.cache"]) == {"clean"}
    assert len(all_settings) == len(frame)


@pytest.mark.slow
def test_means_over_seeds_follow_their_runs(seeds):
    frame = seeds.frame()
    mean = frame.iloc[-1]
    runs = frame[(frame["method"] == "roe") & (frame["seeds"] == 1)]
    assert list(runs["seed"]) == [0, 1, 2]
    assert runs["p_holm"].isna().all()
    assert mean["seeds"] == 3
    assert mean["test"] == "seeds"
    assert mean["p_holm"] == mean["p"]
    assert mean["value"] == pytest.approx(runs["value"].mean())
    assert mean["std"] > 0
    assert re.search(r"^roe +3 ", repr(seeds), re.MULTILINE)
    assert seeds.plot()._repr_png_().startswith(b"\x89PNG")
    [axis] = seeds.plot().axes[:1]
    assert len(axis.get_yticks()) == 1, "the mean alone, which has the test"


@pytest.mark.slow
def test_every_example_of_every_run_is_a_row(grid, seeds):
    examples = grid.examples()
    assert len(examples) == 6 * 4
    assert list(examples.groupby("run").size()) == [4] * 6
    [logged] = grid.runs[0].folder.glob("samples_*.jsonl")
    lines = {line["doc_id"]: line for line in map(json.loads, logged.read_text().splitlines())}
    grid_examples = examples[examples["run"] == grid.runs[0].folder.name]
    for row in grid_examples.to_dict("records"):
        line = lines[row["document"]]
        assert row["prompt"] == line["arguments"]["gen_args_0"]["arg_0"]
        assert row["score"] == line["acc"] == float(row["answer"] == row["target"])
    texts = examples[examples["task"] == "toy_math"]
    assert texts["answer"].map(type).eq(str).all()
    assert texts["target"].str.contains("####").all()
    examples = seeds.examples()  # texts that are scored as a whole have no answer
    assert len(examples) == 4 * 3
    assert examples["answer"].isna().all()
    assert examples["prompt"].str.len().gt(20).all()


@pytest.mark.slow
def test_what_is_shown_has_scores_and_no_hash(grid):
    text = repr(grid)
    page = grid._repr_html_()
    for shown_text in (text, page):
        assert "p (Holm)" in shown_text
        assert "same question (scores: 4)" in " ".join(shown_text.split())
        assert not re.search("[0-9a-f]{16}", shown_text)
    assert "<table" in page
    assert text.count("toy_math") == 3


@pytest.mark.slow
def test_a_run_that_is_compared_with_none_has_no_plot(tmp_path, tiny_olmoe_dir):
    keys = [
        "method=base",
        "task=toy_choice",
        "limit=2",
        "metrics=expert",
        f"model.path={tiny_olmoe_dir}",
    ]
    results = moe_lab.run([*keys, f"output_dir={tmp_path}"], quiet=True)
    with pytest.raises(ConfigError, match="no difference to plot"):
        results.plot()
    assert results.frame()["expert/load_balance/all"][0] > 0
    assert "difference" not in repr(results)


def test_settings_that_differ_are_columns():
    """Broken by rows of `method.n=2,4` without a difference, and by a column that
    only follows from an option."""
    roe = get_method("roe").Config
    configs = [Config(method=roe(name="roe", n=n), seed=seed) for n, seed in ((2, 0), (4, 1))]
    assert config_settings.settings_of(configs, configs) == [{"method.n": 2}, {"method.n": 4}]
    base = Config(method=get_method("base").Config(name="base"), limit=3)
    assert config_settings.settings_of([base, *configs], [base, *configs]) == [
        {"limit": 3, "method.n": None},
        {"limit": None, "method.n": 2},
        {"limit": None, "method.n": 4},
    ]
    tasks = [Config(task=TaskConfig(name=name, category=name)) for name in ("math", "code")]
    assert config_settings.settings_of(tasks, tasks) == [{}, {}]


# The command and the functions


@pytest.mark.slow
def test_results_are_those_of_the_command(grid, keys, capsys):
    command = run_command(capsys, *keys)
    frame = grid.frame().set_index("run")
    for path, result, run in zip(command.out.splitlines()[-4:], grid, grid.runs, strict=True):
        assert json.loads(Path(path).read_text()) == result
        assert str(run.folder) in path
        row = frame.loc[run.folder.name]
        block = result["moe_lab"]
        assert (row["method.n"], row["seed"]) == (block["method"]["config"]["n"], 0)
        assert row["value"] == result["results"][row["task"]][row["metric"]]
        assert f"{row['p_holm']:.4f}" in command.out


@pytest.mark.slow
def test_a_report_has_what_is_stored(tmp_path, tiny_olmoe_dir):
    """Broken by a run that is computed, and by a missing one that hides the others."""
    keys = ["-m", "method=roe", "task=toy_choice", "limit=2", f"model.path={tiny_olmoe_dir}"]
    keys.append(f"output_dir={tmp_path}")
    with pytest.raises(ConfigError, match="Nothing of this is stored yet"):
        moe_lab.report([*keys, "method.n=2"], quiet=True)
    made = moe_lab.run([*keys, "method.n=2"], quiet=True)
    (tmp_path / "report.html").unlink()
    reported = moe_lab.report([*keys, "method.n=2,3"], quiet=True)
    assert list(reported) == list(made)
    assert len(reported.missing) == 1
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_an_experiment_has_its_tables(tmp_path, capsys, tiny_olmoe_dir):
    """Broken by another p than that of the table, or by a cell that is left out."""
    (tmp_path / "conf" / "experiments").mkdir(parents=True)
    text = f"""title: T
source: S
scales:
  tiny:
    grid: {{task: [toy_choice], method: [base, [roe, method.n=2], [roe, method.n=3]]}}
    set: [limit=4, "model.path={tiny_olmoe_dir}", seeds=2]
rows: [method, method.n]
columns: [task]
metric: headline
paper: []
"""
    (tmp_path / "conf" / "experiments" / "mine.yaml").write_text(text)
    keys = ["--config-dir", str(tmp_path / "conf"), "experiment=mine", f"output_dir={tmp_path}/o"]
    results = moe_lab.run(keys, quiet=True)
    [table] = results.tables.values()
    assert len(results) == 5
    assert len(table) == 3
    assert list(results.tables) == ["mine"]
    stored = json.loads((tmp_path / "o" / "tables" / "mine-tiny.json").read_text())
    roe_rows = table[table["method"] == "roe"]
    assert list(roe_rows["seeds"]) == [2, 2]
    assert roe_rows["p_holm"].notna().all()
    assert len(stored["rows"]) == 3
    means = results.frame().dropna(subset="p_holm")
    assert sorted(means["p_holm"]) == sorted(roe_rows["p_holm"])
    assert set(roe_rows["family"]) == {2}
    second_report = moe_lab.report(keys, quiet=True)
    assert second_report.tables["mine"].equals(table)
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_an_experiment_has_the_p_of_its_command(tmp_path):
    """Broken by a calibration that is no comparison of the experiment, and by
    a family without a control."""
    overrides = [
        "task=toy_text",
        "method=roe",
        "method.n=2",
        "seeds=1",
        "model=tiny-noisy",
        "limit=8",
    ]
    overrides += [
        "tuning=uniform",
        "tuning.step=4",
        "tuning.max_temperature=4",
        "tuning.num_samples=4",
    ]
    (tmp_path / "conf" / "experiments").mkdir(parents=True)
    settings = ", ".join(overrides[2:])
    text = f"""title: T
source: S
scales:
  tiny:
    grid: {{task: [toy_text], method: [base, [roe, {settings}]]}}
    set: [model=tiny-noisy, limit=8]
rows: [method]
columns: [task]
metric: headline
paper: []
"""
    (tmp_path / "conf" / "experiments" / "mine.yaml").write_text(text)
    place = f"output_dir={tmp_path}/o"
    columns = ["method", "compared_with", "p", "p_holm", "question", "family"]

    def tested(results) -> list[tuple]:
        frame = results.frame().dropna(subset="p")[columns]
        return sorted(frame.itertuples(index=False, name=None))

    command = tested(moe_lab.run([*overrides, place], quiet=True))
    in_experiment = moe_lab.run(
        ["--config-dir", str(tmp_path / "conf"), "experiment=mine", place], quiet=True
    )
    assert tested(in_experiment) == command
    tests = [
        (method, compared_with, question, family)
        for method, compared_with, _, _, question, family in command
    ]
    assert tests == [
        ("calibration", "base", "controls", 2),
        ("roe", "base", "scores", 1),
        ("roe", "calibration", "controls", 2),
    ]
    report = moe_lab.report(
        ["--config-dir", str(tmp_path / "conf"), "experiment=mine", place], quiet=True
    )
    assert tested(report) == command


@pytest.mark.slow
def test_quiet_prints_nothing(tmp_path, capfd, tiny_olmoe_dir):
    """Broken by a table, a progress line or a bar in a notebook that asked for none."""
    keys = [
        "method=roe",
        "method.n=2",
        "task=toy_choice",
        "limit=2",
        f"model.path={tiny_olmoe_dir}",
    ]
    keys += [f"output_dir={tmp_path}", "device=cpu"]
    results = moe_lab.run(keys, quiet=True)
    assert capfd.readouterr() == ("", "")
    assert len(results) == 1
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
    keys = [
        "-m",
        "method=roe",
        "method.n=2,3",
        "task=toy_choice",
        "limit=4",
        f"model.path={tiny_olmoe_dir}",
    ]
    keys.append(f"output_dir={tmp_path}")
    plan = moe_lab.plan(keys)
    frame = plan.frame()
    assert capsys.readouterr().out == ""
    assert not any(tmp_path.iterdir())
    assert list(frame["method"]) == ["base", "roe", "roe"]
    assert list(frame["method.n"])[1:] == [2, 3]
    assert set(frame["examples"]) == {4}
    assert set(frame["state"]) == {"missing"}
    assert "baseline" not in frame
    command = run_command(capsys, *keys, "mode=plan").out
    for run, tokens in zip(frame["run"], frame["tokens"], strict=True):
        assert run in command
        assert f"{tokens:,}" in command
        assert run in repr(plan)
    assert plan.notes[0].startswith("To run: 3")
    assert plan.notes[0] in " ".join(command.split())
    assert "To run: 3" in plan._repr_html_()
    assert len(plan) == 3
    plan = moe_lab.plan(["experiment=roe/figure3", "scale=tiny", f"output_dir={tmp_path}"])
    assert {"roe", "base"} <= set(plan.frame()["method"])
    assert not any(tmp_path.iterdir())
