"""Tables of papers: cells, continuing, failed cells, measured next to published.

Broken by: a stored cell that is run again, a failed cell that stops the others,
a number in the wrong place.
"""

import csv
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import moe_lab.runs.execute
import moe_lab.runs.jobs
import moe_lab.runs.tuning.study
from moe_lab.cli import prefetch
from moe_lab.config import catalog
from moe_lab.config.compose import Cell, compose_cell
from moe_lab.config.overrides import quote
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, ResultsError, TaskError
from moe_lab.methods.c3po.method import C3PO
from moe_lab.reports.loggers import Logger
from moe_lab.reports.papers.experiment import Scale, find_experiments, load_experiment
from moe_lab.reports.papers.files import file_stem, typed_settings
from moe_lab.runs import attempts
from moe_lab.runs.config import to_config
from moe_lab.runs.experiments import cells, runner, table_cells
from moe_lab.runs.experiments.composing import Composed
from moe_lab.runs.jobs import Job
from tests.support.command import FakeRuns, install, run_command
from tests.support.pages import tree
from tests.support.seed_scores import seed_difference, seed_score

EXPERIMENT = """\
# A table for tests
title: "Table T"
source: "A paper"
scales:
  tiny:
    grid: {model: [tiny], task: [toy_math, toy_choice], method: [base, roe]}
    set: [limit=10]
  small:
    cells: [[method=roe, method.n=4], [method=roe, method.n=8]]
rows: [model, task]
columns: [method]
paper:
  - {cell: {task: toy_math, method: roe}, value: 55.5, unit: percent, place: "Table 9", mark: "(?)"}
  - {cell: {model: gpt, task: toy_math}, value: 0.5, place: "Section 3"}
"""


@pytest.fixture
def write(tmp_path):
    """Writes an experiment's YAML: EXPERIMENT with other texts."""

    def write(name, *changes, text=EXPERIMENT, folder="experiments/paper"):
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / f"{name}.yaml").write_text(text)

    return write


@pytest.fixture
def runs(monkeypatch, tmp_path, write):
    """Runs that need no model, and one experiment file."""
    write("table_t")
    monkeypatch.setattr(catalog, "resource_folder", lambda name: tmp_path / name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return install(monkeypatch, FakeRuns())


@pytest.fixture
def seen(runs, monkeypatch):
    """The configurations that are prepared."""
    seen = []

    def prepare(config):
        seen.append(config)
        return runs.prepare(config)

    monkeypatch.setattr(moe_lab.runs.jobs, "prepare", prepare)
    return seen


@pytest.fixture
def refuse(runs, monkeypatch):
    """Makes the preparation of some configurations fail."""

    def refuse(error, which=lambda config: True):
        def prepare(config):
            if which(config):
                raise error
            return runs.prepare(config)

        monkeypatch.setattr(moe_lab.runs.jobs, "prepare", prepare)

    return refuse


@pytest.fixture
def tables(tmp_path):
    return tmp_path / "work" / "outputs" / "tables"


def test_scales_expand_to_overrides_and_an_option_brings_its_own():
    scale = Scale(
        grid={"task": ["a", "b"], "seed": [1, 2]}, cells=[["method=base"]], set=["limit=3"]
    )
    assert scale.overrides() == [
        ["task=a", "seed=1", "limit=3"],
        ["task=a", "seed=2", "limit=3"],
        ["task=b", "seed=1", "limit=3"],
        ["task=b", "seed=2", "limit=3"],
        ["method=base", "limit=3"],
    ]
    methods = {"method": ["base", ["roe", "tuning=tpe", "seeds=2"]], "task": ["a"]}
    scale = Scale(grid=[methods, {"model.path": [["owner/name", "model.name=x"]]}], set=["limit=3"])
    assert scale.overrides() == [
        ["method=base", "task=a", "limit=3"],
        ["method=roe", "tuning=tpe", "seeds=2", "task=a", "limit=3"],
        ["model.path=owner/name", "model.name=x", "limit=3"],
    ]


PROFILE_EXPERIMENT = """\
# A table for tests
title: "Table P"
source: "A paper"
scales:
  tiny:
    grid: {method: [roe], method.n: [4, 8], method.temperature: [0, profile]}
    profile: [tuning=tpe, method.n=2, tuning.n_trials=2]
rows: [task, method.cache]
columns: [method.n, method.temperature, method.skip_layers]
"""


def test_cells_share_the_profile_of_one_study(runs, write, tables, monkeypatch, capsys):
    """Broken by a study per cell, and by a profile that takes the place of a cell's own n."""
    write("table_p", text=PROFILE_EXPERIMENT)
    studies = []
    after = []
    monkeypatch.setattr(cells, "job_of", lambda config: Job(config, runs=[runs.prepare(config)]))

    def prepare_study(config):
        studies.append(config)
        return "study"

    monkeypatch.setattr(cells, "prepare_study", prepare_study)

    def job_after(study, config):
        after.append((study, config.method.n))
        unfinished = SimpleNamespace(folder=Path("s"), profile=lambda: None)
        return (
            Job(config, [unfinished])
            if config.method.n == 8
            else Job(config, runs=[runs.prepare(config)])
        )

    monkeypatch.setattr(cells, "job_after", job_after)
    monkeypatch.setattr(Job, "make_ready", Mock(side_effect=ResultsError("no trial is finished")))
    assert run_command(capsys, "experiment=table_p").code == 1
    assert [(config.method.n, config.tuning.n_trials) for config in studies] == [(2, 2)]
    assert after == [("study", 4), ("study", 8)]
    text = (tables / "paper-table_p-tiny.md").read_text()
    assert "| n=4 temperature=0 |" in text, "no unset key"
    assert "| n=8 temperature=profile |" in text, "no unset key"
    assert ", 8, profile, -: no trial is finished" in text
    assert "published" not in text, "the paper has no number for any cell"


@pytest.mark.slow
def test_a_temperature_that_is_typed_takes_the_place_of_the_profile(runs, write, capsys):
    """Broken by a study whose profile is taken in the place of what the user wants."""
    write("table_p", text=PROFILE_EXPERIMENT)
    assert run_command(capsys, "experiment=table_p", "method.temperature=0.3").code == 0
    assert {config.method.temperature for config in runs.asked} == {0.3}
    assert len(runs.prepared) == 2, "temperatures 0 and profile are one cell now"


def csv_rows(file):
    with file.open() as lines:
        return list(csv.DictReader(lines))


@pytest.mark.slow
def test_typed_settings_make_a_table_of_their_own(runs, tables, capsys):
    """Broken by a table of other settings that replaces the first one, or that
    does not say its settings."""
    same_keys = ["device=cpu", "batch_size=2", "logger=none", "rerun=true", "scale=tiny"]
    assert run_command(capsys, "experiment=table_t", *same_keys).code == 0
    first = tables / "paper-table_t-tiny.md"
    plain = first.read_text()
    for overrides in (["limit=4", "method.n=2"], ["method.n=2", "limit=4"], ["limit=5"]):
        assert run_command(capsys, "experiment=table_t", *overrides).code == 0
    assert first.read_text() == plain
    names = sorted(file.name for file in tables.glob("*-tiny-*.md"))
    overrides = [name.removeprefix("paper-table_t-tiny-")[:-12] for name in names]
    assert overrides == ["limit-4-method.n-2", "limit-5"]
    text = (tables / names[0]).read_text()
    assert text.startswith("# Table T (scale tiny, limit=4, method.n=2)\n")
    assert "Table T (scale tiny, limit=5)" in (tables / "index.html").read_text()


def test_names_of_tables_tell_long_settings_apart():
    [experiment] = find_experiments("roe/figure6")
    temperatures = [f"method.temperature=[{','.join(['0.1'] * 40)},{last}]" for last in (1, 2)]
    settings = [
        typed_settings(["data_dir=/a b/c", "method.profile=/a b/c", temperature])
        for temperature in temperatures
    ]
    stems = [file_stem(replace(experiment, typed=overrides), "tiny") for overrides in settings]
    assert len(set(stems)) == 2
    for stem in stems:
        settings_part = stem.removeprefix(
            "roe-figure6-tiny-method.profile--a-b-c-method.temperature"
        )
        assert re.fullmatch(r"--0[.0-9-]+-[0-9a-f]{8}", settings_part)
        assert len(stem) < 100


@pytest.mark.slow
def test_a_run_that_fails_again_is_shown_as_it_is_stored(runs, tables, capsys, monkeypatch):
    """Broken by rerun=true whose failure leaves the stored result and takes it out of the table."""
    assert run_command(capsys, "experiment=table_t").code == 0

    def execute(run, models, compute=True, **_):
        if compute and run.config.task.name == "toy_math":
            raise ResultsError("the disk is full")
        return runs.execute(run, models, compute=compute)

    monkeypatch.setattr(moe_lab.runs.execute, "execute", execute)
    assert run_command(capsys, "experiment=table_t", "rerun=true").code == 1
    text = (tables / "paper-table_t-tiny.md").read_text()
    assert "4 of 4 cells are measured" in text
    assert "- tiny, toy_math, base: the disk is full" in text


def test_without_data_no_table_is_written_and_the_plan_says_so_once(refuse, tables, capsys):
    refuse(TaskError("no data here"))
    ended = run_command(capsys, "experiment=table_t")
    assert ended.code == 2, "the request is wrong: no cell can run"
    assert "No cell is measured: no table is written." in ended.err
    assert not tables.exists()
    ended = run_command(capsys, "experiment=table_t", "mode=plan")
    assert ended.code == 0
    assert ended.out.count("cannot run (1)") == 4
    assert "To run: 0, about 0 forward tokens. Cannot run: 4." in ended.out
    assert ended.out.count("no data here") == 1


@pytest.mark.slow
def test_cells_in_one_place_are_told_apart_by_their_settings(runs, tables, capsys):
    """Broken by two cells that what was typed puts in one place: the later one hid the other."""
    overrides = ["experiment=table_t", "scale=small", "task=toy_choice", "method.weights=clean"]
    assert run_command(capsys, *overrides, "method.n=2").code == 0
    [table] = tables.glob("*.csv")
    assert len(csv_rows(table)) == 1
    assert "settings" not in csv_rows(table)[0]
    table.unlink()
    assert run_command(capsys, *overrides).code == 0
    [table] = tables.glob("*.csv")
    assert [row["settings"] for row in csv_rows(table)] == ["method.n=4", "method.n=8"]
    lines = [
        line for line in table.with_suffix(".md").read_text().splitlines() if "| tiny |" in line
    ]
    assert len(lines) == 2


@pytest.mark.slow
def test_a_cell_of_two_tables_is_one_job(runs, write, tables, capsys):
    write("table_u", ("Table T", "Table U"))
    out = run_command(capsys, "experiment=all", "mode=plan").out
    assert "To run: 4, about 4,000 forward tokens." in out
    assert not tables.exists()
    runs.prepared.clear()
    assert run_command(capsys, "experiment=all").code == 0
    assert len(runs.prepared) == len(runs.executed) == 4


def test_roe_at_temperature_0_is_a_column_of_its_own(runs, write, tables, capsys):
    """What rounding alone changes is next to RoE and is not taken for it."""
    write("table_t", ("[base, roe]", "[base, roe, [roe, method.temperature=0]]"))
    assert run_command(capsys, "experiment=table_t").code == 0
    lines = (tables / "paper-table_t-tiny.md").read_text().splitlines()
    [header] = [line for line in lines if "| base |" in line]
    assert "| roe |" in header
    assert "| roe, temperature 0 |" in header


@pytest.mark.slow
@pytest.mark.parametrize(
    "axis, shown_columns", [("", False), ("apply_chat_template: [false, true], ", True)]
)
def test_a_row_key_that_no_cell_has_is_left_out(axis, shown_columns, runs, write, tables, capsys):
    """Chat templates are an axis of Figure 3 at one scale and none at the others."""
    rows = ("rows: [model, task]", "rows: [model, task, apply_chat_template]")
    write("table_t", rows, ("{model: [tiny], ", "{model: [tiny], " + axis))
    assert run_command(capsys, "experiment=table_t").code == 0
    lines = (tables / "paper-table_t-tiny.md").read_text().splitlines()
    assert ("| model | task | apply_chat_template |" in "".join(lines)) is shown_columns
    assert (
        len([line for line in lines if line.startswith("| tiny | toy_math | ")])
        == 1 + shown_columns
    )
    assert any(line.startswith("| tiny | toy_math | true |") for line in lines) is shown_columns


@pytest.mark.slow
def test_a_finished_cell_is_not_run_again_and_a_report_rebuilds_from_what_is_stored(
    runs, tables, capsys
):
    table = tables / "paper-table_t-tiny.md"
    runs.errors["tiny-base-toy_choice-0"] = KeyboardInterrupt()
    assert run_command(capsys, "experiment=table_t").code == 130
    first = list(runs.executed)
    assert first == ["tiny-base-toy_math-0", "tiny-roe-toy_math-0"]
    assert "2 of 4 cells" in table.read_text()
    runs.errors.clear()
    runs.executed.clear()
    assert run_command(capsys, "experiment=table_t").code == 0
    assert runs.executed == ["tiny-base-toy_choice-0", "tiny-roe-toy_choice-0"]
    before = table.read_text()
    table.unlink()
    runs.executed.clear()
    runs.done.discard("tiny-roe-toy_choice-0")
    assert run_command(capsys, "experiment=table_t", "mode=report", "rerun=true").code == 0
    after = table.read_text()
    assert not runs.executed
    assert "3 of 4 cells" in after
    assert "| missing |" in after
    assert before != after


@pytest.mark.slow
def test_a_cell_that_cannot_run_is_named_and_the_others_run(runs, refuse, capsys):
    refuse(
        TaskError("toy_choice.jsonl is missing"), lambda config: config.task.name == "toy_choice"
    )
    ended = run_command(capsys, "experiment=table_t")
    assert ended.code == 1
    assert (
        "Cannot run tiny-base-toy_choice, tiny-roe-toy_choice: toy_choice.jsonl is missing"
        in ended.err
    )
    assert len(runs.executed) == 2
    assert run_command(capsys, "experiment=table_t", "mode=plan").code == 0


@pytest.mark.slow
def test_a_report_of_nothing_leaves_the_table_as_it_is(runs, write, tables, capsys):
    """Broken by an empty table of another limit, which replaces the table of results."""
    assert run_command(capsys, "experiment=table_t").code == 0
    files = [tables / "paper-table_t-tiny.md", tables / "paper-table_t-tiny.csv"]
    before = [file.read_bytes() for file in files]
    stored = runs.done
    runs.done = set()
    ended = run_command(capsys, "experiment=table_t", "mode=report", "limit=3")
    assert ended.code == 2
    assert "Nothing of this is stored yet. The same command with mode=run computes it." in ended.err
    assert [file.read_bytes() for file in files] == before

    runs.done = {name for name in stored if "toy_math" in name}
    write("table_v", ("[toy_math, toy_choice]", "[toy_choice]"))
    ended = run_command(capsys, "experiment=all", "mode=report")
    assert ended.code == 0
    assert "experiment=paper/table_v: Nothing of this is stored yet." in ended.err
    assert "2 of 4 cells" in files[0].read_text(), "what is stored is shown"
    assert not (tables / "paper-table_v-tiny.md").exists()
    page = tree(tables / "index.html")
    assert len(page.xpath("//tr[@data-state='not run']")) == 2 + 2, (
        "the page names every cell of both tables"
    )


def test_a_table_is_logged_in_the_group_of_its_command(runs, tables, capsys, monkeypatch):
    loggers = []
    tables_logged = []

    class Kept(Logger):
        def log_table(self, name, frame):
            tables_logged.append((name, frame))

    @contextmanager
    def opened(config, **options):
        loggers.append(options)
        yield Kept()

    for module in (attempts, runner):
        monkeypatch.setattr(module, "open_logger", opened)
    assert run_command(capsys, "experiment=paper/table_t").code == 0
    *loggers_of_runs, last_logger = loggers
    assert {options["kind"] for options in loggers_of_runs} == {"run"}
    assert last_logger["kind"] == "experiment"
    assert {options["group"] for options in loggers} == {"paper/table_t"}
    [(name, frame)] = tables_logged
    assert name == "paper-table_t-tiny"
    assert list(frame["published"].dropna()) == [0.555]
    assert len(frame) == 4
    assert set(frame["method"]) == {"base", "roe"}


def test_another_scale_has_its_own_table_and_the_users_overrides_come_last(seen, tables, capsys):
    assert run_command(capsys, "experiment=table_t", "scale=small", "limit=3").code == 0
    assert len(list(tables.glob("paper-table_t-small-limit-3-*.md"))) == 1
    assert {config.limit for config in seen} == {3}
    assert all(config.overrides[-1] == "limit=3" for config in seen)
    ended = run_command(capsys, "experiment=table_t", "scale=paper")
    assert ended.code == 2
    assert "It has: tiny, small" in ended.err


@pytest.mark.parametrize(
    "change, message",
    [
        (("rows: [model, task]", "row: [model, task]"), "Did you mean 'rows'?"),
        (("value: 55.5", "value: high"), "paper[0].value=high: expected a number"),
        (("set: [limit=10]", "sets: [limit=10]"), "Did you mean 'scales.tiny.set'?"),
        (('title: "Table T"\n', ""), "title"),
        (("columns: [method]", "columns: [method]\nfigure: heat_map"), "Did you mean 'heatmap'?"),
        (
            ("columns: [method]", "columns: [methods]"),
            "no cell has 'methods'. Did you mean 'method'?",
        ),
        (
            ("rows: [model, task]", "rows: [models.name, task]"),
            "rows, columns or average: no cell has 'models.name'.",
        ),
        (("columns: [method]", "columns: [method]\nmetric: headlin"), "Did you mean 'headline'?"),
        (
            ("columns: [method]", "columns: [method]\nmetric: acc"),
            "metric=acc is unknown.\nChoices: lm-eval's with their filter (acc,none), headline, ",
        ),
        (
            ("set: [limit=10]", "set: [metrics=expert]\n    metric: expert.load_balanc"),
            "Did you mean 'expert.load_balance'?",
        ),
        (
            ("columns: [method]", "columns: [method]\nmetric: training.validation"),
            "Did you mean 'training.validation_loss'?",
        ),
        (
            ("set: [limit=10]", "set: [limit=10]\n    metric: expert.load_balance"),
            "metric=expert.load_balance: no cell of scales.tiny has metrics=expert.\n"
            "Add it: set: [metrics=expert].",
        ),
    ],
)
def test_a_malformed_experiment_is_named(change, message, tmp_path):
    file = tmp_path / "t.yaml"
    file.write_text(EXPERIMENT.replace(*change))
    with pytest.raises(ConfigError) as error:
        load_experiment("t", file)
    assert str(file) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("place", ["set", "grid", "option", "cells"])
def test_an_expert_metric_is_shown_where_any_cell_measures_it(place, tmp_path):
    scales = {
        "set": "{cells: [[method=base]], set: [metrics=expert]}",
        "grid": "{grid: {method: [base], metrics: [none, expert]}}",
        "option": "{grid: {method: [roe, [base, metrics=expert]]}}",
        "cells": "{cells: [[method=roe], [method=base, metrics=expert]]}",
    }
    file = tmp_path / "t.yaml"
    file.write_text(
        f"title: T\nsource: S\nrows: [task]\ncolumns: [method]\nmetric: expert.capacity\n"
        f"scales: {{tiny: {scales[place]}}}\n"
    )
    assert load_experiment("t", file).metrics("tiny") == {"expert.capacity": "expert.capacity"}


def test_names_are_found_with_and_without_their_folder_and_in_folders_of_config_dir(
    runs, write, tmp_path
):
    assert [experiment.name for experiment in find_experiments("table_t")] == ["paper/table_t"]
    assert [experiment.name for experiment in find_experiments("paper/table_t,table_t")] == [
        "paper/table_t"
    ]
    write("table_10", folder="mine/experiments/own")
    write("table_t", ("Table T", "Mine"), folder="mine/experiments")
    folders = [tmp_path / "mine", tmp_path / "empty"]
    experiments_found = find_experiments("own/table_10,table_10,table_t,paper/table_t", folders)
    assert [experiment.name for experiment in experiments_found] == [
        "own/table_10",
        "table_t",
        "paper/table_t",
    ]
    assert experiments_found[1].title == "Mine", (
        "a whole name comes before the last part of another"
    )
    assert {"own/table_10", "paper/table_t"} < {
        experiment.name for experiment in find_experiments("all", folders)
    }
    with pytest.raises(ConfigError) as error:
        find_experiments("own/table_1", folders)
    assert "Did you mean 'own/table_10'?" in str(error.value)
    write("table_t", folder="mine/experiments/paper")
    with pytest.raises(ConfigError, match="paper/table_t.yaml has the name of another experiment"):
        find_experiments("paper/table_t", folders)
    write("table_t", folder="experiments/other")
    with pytest.raises(ConfigError, match="ambiguous"):
        find_experiments("table_t")


@pytest.mark.slow
def test_the_experiments_that_come_with_the_package_compose_at_every_scale():
    """Broken by an option or key that does not exist; what cannot run for want
    of data is another matter.

    Cells whose overrides all stand in earlier ones too are left out: there are hundreds.
    """
    experiments = find_experiments("all")
    names = {experiment.name for experiment in experiments}
    assert "roe/table1" in names
    for number in range(3, 11):
        assert f"roe/figure{number}" in names
    seen: set[str] = set()
    for experiment in experiments:
        assert set(experiment.scales) == {"tiny", "small", "paper"}, (
            "experiment=all has every scale"
        )
        for scale in experiment.scales.values():
            cells_overrides = list(scale.overrides())
            if scale.profile:
                cells_overrides.append(scale.profile)
            for overrides in cells_overrides:
                if not seen.issuperset(overrides):
                    seen.update(overrides)
                    typed_overrides = to_config(compose_cell(overrides, [])).overrides
                    assert typed_overrides == [quote(override) for override in overrides]


def test_a_cell_is_timed_if_any_of_its_experiments_shows_time(monkeypatch):
    """Broken by workers that run the cell next to others.

    A table without times has the same cell.
    """
    monkeypatch.setattr(cells, "job_of", Job)
    cell = Cell(values={"method": {}}, choices={}, config_dirs=[])
    known_jobs: dict[str, Job] = {}
    for figure in (None, "overhead"):
        experiment: Any = SimpleNamespace(figure=figure)
        cells.prepare_cells(Composed(experiment, [(cell, Config())], None), known_jobs)
        [job] = known_jobs.values()
        assert job.timed == (figure == "overhead")


def test_several_seeds_are_one_cell_with_its_spread(runs, tables, capsys, monkeypatch):
    difference = seed_difference(interval=(-0.25, 0.75))
    scores = {"acc,none": seed_score(interval=(0.2, 0.8), with_base=difference)}
    several_results = SimpleNamespace(scores=dict.fromkeys(("toy_math", "toy_choice"), scores))
    monkeypatch.setattr(table_cells, "summary", lambda outcomes: several_results)
    values = {"tiny-roe-toy_math-0": 0.4, "tiny-roe-toy_math-1": 0.6, "tiny-roe-toy_math-2": 0.5}

    def execute(run, models, **options):
        outcome = runs.execute(run, models, **options)
        scores = outcome.results.lm_eval.results[run.config.task.name]
        scores["acc,none"] = values.get(run.run_id, 0.5)
        return outcome

    monkeypatch.setattr(moe_lab.runs.execute, "execute", execute)
    assert run_command(capsys, "experiment=table_t", "seeds=3").code == 0
    assert len(runs.executed) == 2 + 2 * 3, "base has no randomness: one run"
    [table] = tables.glob("paper-table_t-tiny-seeds-3-????????.md")
    text = table.read_text()
    assert "0.5000 ± 0.1000 [0.2000, 0.8000] seeds [0.2516, 0.7484]" in text
    assert "standard deviation after ±" in text
    assert "| +0.1000 [-0.2500, +0.7500] over documents |" in text, "equal differences"
    assert "(p=" not in text, "equal differences"
    row = list(csv.DictReader(table.with_suffix(".csv").open()))[1]
    assert (row["seeds"], row["difference_low"]) == ("3", "-0.25")
    assert float(row["std"]) == pytest.approx(0.1)
    assert row["runs"].split() == list(values)


@pytest.fixture
def table_u(runs, write):
    """A second experiment, whose methods are others."""
    write("table_u", ("method: [base, roe]", "method: [base, c3po]"), ("Table T", "Table U"))


def method_overrides(config):
    return [override for override in config.overrides if "method." in override]


@pytest.mark.slow
def test_settings_of_a_method_reach_the_cells_that_have_them(table_u, seen, capsys):
    """Broken by base cells that lose their name, and by keys that are checked
    with the default method's."""
    overrides = ["method.weights=perturbed", "++method.k=5"]
    for mode in ("plan", "run"):
        seen.clear()
        assert run_command(capsys, "experiment=all", *overrides, "seed=1", f"mode={mode}").code == 0
        configs = {config.method.name: config for config in seen}
        assert list(configs) == ["base", "roe", "c3po"]
        assert configs["roe"].method.weights == "perturbed"
        assert configs["c3po"].method.k == 5
        assert method_overrides(configs["base"]) == []
        assert method_overrides(configs["roe"]) == ["method.weights=perturbed"]
        assert method_overrides(configs["c3po"]) == ["method.k=5"]
    seen.clear()
    assert run_command(capsys, "experiment=table_u", overrides[1], "mode=report").code == 0
    assert {getattr(config.method, "k", None) for config in seen} == {None, 5}


def test_prefetch_has_the_settings_too(runs, table_u, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr("moe_lab.models.hub.is_offline", lambda: False)
    of_methods = prefetch.STEPS[-1]

    def fetch_nothing(config):
        seen.append(config)
        return []

    step = replace(of_methods, fetch=fetch_nothing)
    monkeypatch.setattr(prefetch, "STEPS", (step,))
    assert run_command(capsys, "experiment=table_u", "method.k=5", "mode=prefetch").code == 0
    assert [getattr(config.method, "k", "none") for config in seen] == ["none", 5] * 2


def test_a_setting_that_no_cell_or_not_every_cell_has_is_a_wrong_request(runs, table_u, capsys):
    ended = run_command(capsys, "experiment=table_t,table_u", "method.step=2", "mode=plan")
    assert ended.code == 2
    assert "no cell of experiment=table_t,table_u has it. Did you mean 'steps'?" in ended.err
    assert (
        run_command(capsys, "experiment=table_u", "method.weights=perturbed", "mode=plan").code == 2
    )
    ended = run_command(capsys, "experiment=table_t", "scale=small", "method=base")
    assert ended.code == 2
    assert "it is a key of policy, roe" in ended.err
    assert "applies to every cell" in ended.err


def test_another_method_takes_its_settings_in_every_cell_and_equal_cells_are_one(
    seen, capsys, monkeypatch
):
    monkeypatch.setattr(C3PO, "references_left", lambda *arguments: {})
    assert (
        run_command(capsys, "experiment=table_t", "method=c3po", "method.k=5", "mode=plan").code
        == 0
    )
    assert [(config.method.name, config.method.k) for config in seen] == [("c3po", 5)] * 2, (
        "both are one"
    )
    seen.clear()
    assert run_command(capsys, "experiment=table_t", "scale=small", "mode=plan").code == 0
    assert [config.method.n for config in seen] == [4, 8]


@pytest.mark.slow
def test_a_plan_has_cells_whose_temperatures_a_study_will_find(capsys, tmp_path):
    """Broken by a method that is made with the name `profile` for a file of temperatures."""
    ended = run_command(capsys, "experiment=roe/figure4", "mode=plan", f"output_dir={tmp_path}")
    assert ended.code == 0
    assert "method.temperature=profile" in ended.out
    tuned_tokens = {}
    clean_tokens = {}
    for line in ended.out.splitlines():
        if "cache=clean" not in line:
            continue
        columns = re.search(r" method.n=(\d+) (\S+) .*  (\d+)  +([\d,]+)  ", line)
        n, temperature, documents, tokens = columns.groups()
        assert documents == "4", "the documents are the cell's, not the study's"
        if temperature == "method.temperature=profile":
            tuned_tokens[n] = tokens
        if temperature == "method.temperature=0":
            clean_tokens[n] = tokens
    assert len(set(tuned_tokens.values())) == 4
    assert tuned_tokens.items() <= clean_tokens.items()
