"""The command: help, flags that only print, grids, exit codes.

Broken by: an option that --help forgets, a help of another file's YAML, a key that help does
not name, a folder left behind, a run before all are checked, a wrong exit code.
"""

import io
import re
import signal
import subprocess
import sys

import pytest

import moe_lab.runs.execute
import moe_lab.runs.jobs
from moe_lab import __version__
from moe_lab.cli.help import FOOT, GROUPS
from moe_lab.cli.main import main
from moe_lab.config.catalog import about, option_files, resource_folder
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, ResultsError, RunHeldError, Terminated
from moe_lab.methods import get_method
from moe_lab.reports.labels import settings
from moe_lab.reports.papers.experiment import find_experiments
from tests.support.command import FakeRun, FakeRuns, install, run_command
from tests.support.models import make_model, save_model
from tests.support.requests import generating


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Runs that need no model, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    return install(monkeypatch, FakeRuns())


def test_the_help_of_groups_lists_every_option_and_experiment(capsys):
    """Figures of two papers bear the same number."""
    for group in GROUPS:
        ended = run_command(capsys, "--help", f"{group}=")
        options = option_files(group, [resource_folder("conf")])
        width = max(len(name) for name in options)
        for name, file in options.items():
            assert ended.code == 0
            assert f"  {name:<{width}}  {about(file)}\n" in ended.out
    papers = ("  c3po/", "  moe_bench/", "  roe/", "  routing/")
    lines = run_command(capsys, "--help", "experiment=").out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith(papers)]
    longest = max(len(name) for name in listed)
    for line in lines:
        if line.startswith(papers):
            start = 2 + longest + 2
            assert line[start - 2 : start] == "  ", "one column of texts"
            assert line[start] != " ", "one column of texts"
    assert sorted(listed) == sorted(experiment.name for experiment in find_experiments("all"))
    assert listed.index("c3po/table2") < listed.index("c3po/table10")


@pytest.mark.slow
def test_hydra_explains_its_own_flags(tmp_path):
    """In its own process: when Hydra configures logging, absl closes what pytest captures."""
    command = [sys.executable, "-m", "moe_lab", "--hydra-help"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "--cfg" in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["--version"], ["--cfg", "job"], ["--info", "defaults"], ["mode=plan"]],
    ids=" ".join,
)
def test_what_only_prints_leaves_nothing_behind(argv, capsys, runs, tmp_path):
    ended = run_command(capsys, *argv)
    assert ended.code == 0
    assert ended.out
    assert not runs.executed
    assert argv != ["--version"] or ended.out == f"moe_lab {__version__}\n"
    assert list(tmp_path.iterdir()) == []


def test_no_argument_is_roe_on_the_tiny_model(capsys, runs):
    ended = run_command(capsys)
    assert (ended.code, runs.executed) == (0, ["tiny-roe-toy_math-0"])
    *_, page, results = ended.out.splitlines()
    assert (page, results) == (
        "outputs/report.html",
        "outputs/runs/tiny-roe-toy_math-0/results.json",
    )
    scores = ("0.5000", "[0.2373, 0.7627]", "+0.1000", "[-0.1000, +0.3000]", "0.3100")
    for text in (*scores, "PARTIAL", "untuned", "2.0 s"):
        assert text in ended.out


@pytest.mark.slow
def test_what_a_user_typed_is_printed_as_it_is(capsys, runs):
    ended = run_command(capsys, "-m", "task=lm_eval", 'task.name="a[b]","c[/d]",":smile:"')
    assert ended.code == 0
    for text in ("a[b]", "c[/d]", ":smile:", "[0.2373, 0.7627]"):
        assert text in ended.out
    ended = run_command(capsys, "mode=plan", "task=lm_eval", 'task.name="x[/y]"')
    assert ended.code == 0
    assert "x[/y]" in ended.out


@pytest.mark.slow
def test_a_grid_keeps_each_model_together_and_ends_in_one_table(capsys, runs):
    ended = run_command(
        capsys, "-m", "task=toy_math,toy_choice", "model=tiny,olmoe", "method=base,roe"
    )
    assert ended.code == 0
    models = [run.split("-")[0] for run in runs.executed]
    assert models == ["tiny"] * 4 + ["olmoe"] * 4
    assert len(set(runs.executed)) == 8
    assert ended.out.count("Results") == 1


@pytest.mark.slow
def test_seeds_make_runs_only_where_there_is_randomness(capsys, runs):
    """Also broken by a base run that shows seed=0 where the user typed seed=3.

    Also by a seed that is not shown.
    """
    ended = run_command(capsys, "-m", "method=base,roe", "seeds=3", "seed=5")
    assert ended.code == 0
    assert runs.executed == [
        "tiny-base-toy_math-0",
        *(f"tiny-roe-toy_math-{seed}" for seed in (5, 6, 7)),
    ]
    assert runs.summarized == runs.executed
    assert "seed=6" in ended.out, "the table tells the runs apart"
    assert settings([[], ["seed=3"]], [None, 3]) == ["", "seed=3"]
    assert settings([[], []], [None, 0]) == ["", ""], "the default needs no telling"
    assert settings([["seed=1"], ["seed=0"]], [1, 0]) == ["seed=1", "seed=0"]
    planned = run_command(capsys, "-m", "mode=plan", "method=base,roe", "seed=3").out
    rows = [line.split() for line in planned.splitlines()]
    assert {row[1]: row[2] for row in rows if row[1:2] in (["base"], ["roe"])} == {
        "base": "-",
        "roe": "3",
    }


@pytest.mark.slow
def test_what_is_wrong_with_one_cell_names_it(capsys, runs, monkeypatch):
    """Before any cell runs."""

    def prepare(config):
        if config.method.name == "c3po":
            raise ConfigError("method.reference_size=4 is too few.")
        return runs.prepare(config)

    monkeypatch.setattr(moe_lab.runs.jobs, "prepare", prepare)
    ended = run_command(capsys, "-m", "method=icl,c3po", "method.reference_size=4")
    assert ended.code == 2
    assert not runs.executed
    assert (
        "In the cell method=c3po method.reference_size=4:\nmethod.reference_size=4 is too few"
        in ended.err
    )
    assert "In the cell" not in run_command(capsys, "method=c3po", "method.reference_size=4").err


@pytest.mark.slow
@pytest.mark.parametrize(
    "errors, code",
    [
        ({}, 0),
        ({"tiny-roe-toy_math-1": ResultsError("the disk is full")}, 1),
        ({"tiny-roe-toy_math-1": RunHeldError("held by process 7")}, 3),
        (
            {
                "tiny-roe-toy_math-1": RunHeldError("held"),
                "tiny-roe-toy_math-2": ResultsError("full"),
            },
            1,
        ),
        ({"tiny-roe-toy_math-1": RuntimeError("a defect")}, 1),
        (
            {
                "tiny-roe-toy_math-1": ResultsError("full"),
                "tiny-roe-toy_math-2": KeyboardInterrupt(),
            },
            130,
        ),
        ({"tiny-roe-toy_math-2": Terminated()}, 143),
    ],
    ids=["done", "failed", "held", "held and failed", "defect", "interrupted", "terminated"],
)
def test_exit_codes_of_a_grid(errors, code, capsys, runs):
    runs.errors.update(errors)
    ended = run_command(capsys, "-m", "seed=0,1,2,3", "wait=false")
    assert ended.code == code
    assert "tiny-roe-toy_math-0" in runs.executed
    assert ("tiny-roe-toy_math-3" in runs.executed) == (code not in (130, 143))
    assert "Results" in ended.out, "what was finished is shown"
    for name in errors:
        assert f"{name}:\n" in ended.err


@pytest.mark.parametrize(
    "error, code",
    [
        (ResultsError("full"), 1),
        (RunHeldError("held"), 3),
        (RuntimeError("a defect"), 1),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
    ],
    ids=["failed", "held", "defect", "interrupted", "terminated"],
)
def test_exit_codes_of_one_run(error, code, capsys, runs):
    runs.errors["tiny-roe-toy_math-0"] = error
    ended = run_command(capsys, "wait=false")
    assert ended.code == code
    assert ("Traceback" in ended.err) == isinstance(error, RuntimeError)
    assert ("without one it starts anew" in ended.err) == (code in (130, 143))


def test_sigterm_unwinds_as_an_interruption_and_another_handler_is_left_alone(
    capsys, runs, monkeypatch
):
    def terminated(run, models, **_):
        signal.raise_signal(signal.SIGTERM)

    def handler(*_):
        """submitit's."""

    previous = signal.getsignal(signal.SIGTERM)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(moe_lab.runs.execute, "execute", terminated)
            assert run_command(capsys).code == 143
        signal.signal(signal.SIGTERM, handler)
        assert run_command(capsys).code == 0
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_job_that_is_queued_again_leaves_the_command(capsys, runs, monkeypatch):
    """submitit queues its job again by a signal's handler that ends the process."""
    runs.errors["tiny-roe-toy_math-0"] = SystemExit(144)
    with pytest.raises(SystemExit) as stop:
        run_command(capsys)
    assert stop.value.code == 144


@pytest.mark.slow
def test_report_shows_what_is_stored_and_runs_nothing(capsys, runs):
    assert run_command(capsys, "mode=report").code == 2
    runs.done.add("tiny-base-toy_math-0")
    ended = run_command(capsys, "-m", "mode=report", "method=base,roe")
    assert (ended.code, runs.executed) == (0, [])
    assert "Not stored yet" in ended.err


@pytest.mark.slow
def test_a_training_method_prints_its_folder_last(capsys, runs, monkeypatch, tmp_path):
    from moe_lab.methods.pretrain_tiny import PretrainTiny

    monkeypatch.setattr(PretrainTiny, "train", lambda self, config: tmp_path / "models" / "x")
    ended = run_command(capsys, "method=pretrain-tiny")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == str(tmp_path / "models" / "x")
    assert run_command(capsys, "-m", "method=pretrain-tiny,base").code == 2


def test_a_plan_names_all_that_a_command_lacks(capsys, monkeypatch, tmp_path):
    """And not the first alone: the model, the data, the launcher's package."""
    out = f"output_dir={tmp_path}"
    ended = run_command(capsys, "mode=plan", "model=olmoe", "task=svamp", "offline=true", out)
    assert ended.code == 2
    assert ended.out == ""
    for text in (
        "model allenai/OLMoE-1B-7B-0924-Instruct",
        "data set ChilleD/SVAMP",
        "mode=prefetch",
    ):
        assert text in ended.err
    grid = run_command(
        capsys, "-m", "mode=plan", "task=toy_math,svamp", "limit=2", "offline=true", out
    )
    assert grid.code == 2
    assert "cannot run (1)" in grid.out
    assert "(1) Task svamp: " in grid.out
    assert "To run: " in grid.out
    assert "Cannot run: 1." in grid.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n", [2, 8])
def test_the_tokens_of_generated_answers_are_planned(n):
    """The prompt's last token and the new tokens but the last have n samples each."""
    workload = generating(10, prompt=100, new=5)
    run = FakeRun(Config(method=get_method("roe").Config(name="roe", n=n)))
    tokens_of_document = 99 + n + 4 * n
    planned = run.method.forward_tokens(workload, run.config, run.facts)
    assert planned == 10 * tokens_of_document


def test_a_plan_sums_the_tokens_of_all_seeds_and_knows_that_rerun_computes_again(capsys, runs):
    ended = run_command(capsys, "mode=plan", "method=roe", "method.n=4", "seeds=3")
    assert "To run: 3, about 3,000 forward tokens." in ended.out
    runs.done.add("tiny-roe-toy_math-0")
    plan_of_both = run_command(capsys, "-m", "mode=plan", "method=base,roe").out
    assert "done" in plan_of_both
    assert "missing" in plan_of_both
    assert "To run: 1, about 1,000 forward tokens." in plan_of_both
    assert "To run: 0" in run_command(capsys, "mode=plan").out
    assert "To run: 1" in run_command(capsys, "mode=plan", "rerun=true").out


@pytest.mark.slow
def test_grids_have_pages_of_their_own(capsys, runs, tmp_path):
    """Broken by pages of two grids with one name."""
    run_command(capsys, "method=base")
    first = (tmp_path / "outputs" / "report.html").read_text()
    run_command(capsys, "-m", "method=base,roe")
    newest = (tmp_path / "outputs" / "report.html").read_text()
    pages = {page.name: page.read_text() for page in (tmp_path / "outputs" / "pages").iterdir()}
    assert sorted(pages.values()) == sorted([first, newest])
    assert first != newest
    for name in pages:
        assert re.fullmatch(r"tiny-base(-roe)?-toy_math-[0-9a-f]{8}\.html", name)
    assert run_command(capsys, "-m", "method=base,roe").code == 0, "the same grid again"
    assert len(list((tmp_path / "outputs" / "pages").iterdir())) == 2


class Closed(io.StringIO):
    """A pipe whose reader has ended, `head` for example."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_closed_stdout_loses_no_page(capsys, runs, tmp_path, monkeypatch):
    """Broken by a page that is not written because the first line cannot be printed."""
    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["-m", "method=base,roe"]) == 0
    assert (tmp_path / "outputs" / "report.html").is_file()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "overrides",
    [
        ["seeds=2", "mode=plan"],
        ["experiment=roe/figure3", "mode=plan"],
        ["seeds=2"],
        ["tuning=tpe"],
        ["-m", "seed=0,1"],
    ],
    ids=" ".join,
)
def test_several_runs_with_the_id_of_one_wandb_run_are_refused(
    overrides, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("WANDB_RUN_ID", "abc")
    monkeypatch.setenv("WANDB_MODE", "offline")
    ended = run_command(capsys, *overrides, "logger=wandb", "model=tiny", f"output_dir={tmp_path}")
    assert ended.code == 2
    assert "WANDB_RUN_ID=abc is one run of W&B" in ended.err


# Help


CONF = resource_folder("conf")
OPTIONS = [(group, name) for group in GROUPS for name in option_files(group, [CONF])]


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_an_options_yaml_is_shown(group, name, capsys):
    ended = run_command(capsys, "--help", f"{group}={name}")
    lines = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    yaml_lines = "\n".join(f"  {line}".rstrip() if line else "" for line in lines)
    assert ended.code == 0
    assert f"{group}={name}\n\n{yaml_lines}\n" in ended.out
    assert ended.out.splitlines()[-1] == FOOT
    assert "Exit codes" not in ended.out


def test_several_options_are_explained_at_once_and_each_once(capsys):
    out = run_command(
        capsys, "-m", "method=roe,c2r", "task=boolq", "method=c2r", "seed=1", "--help"
    ).out
    heads = [line for line in out.splitlines() if re.fullmatch(r"\w+=\S+", line)]
    assert heads == ["method=roe", "method=c2r", "task=boolq"]
    out = run_command(capsys, "--help", "experiment=roe/figure3").out
    assert "RoE, Figure 3" in out
    assert re.search(r"scale=tiny +\d+ cells", out)


def test_what_names_no_option_is_the_overview(capsys):
    out = run_command(capsys, "--help", "method.n=3", "limit=5").out
    assert out == run_command(capsys, "--help").out
    assert len(out.splitlines()) <= 40
    assert "--help <word>" in out
    assert "Exit codes" not in out
    assert "task=lm_eval task.name=triviaqa" in run_command(capsys, "--help", "task=triviaqa").err


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("roe", ["method=roe\n", "  n: 32"]),
        ("roe/figure3", ["RoE, Figure 3"]),
        ("tuning", ["tuning=\n", "  tpe "]),
        ("limit", ["limit=null\n  Documents per task"]),
        ("method.n", ["method.n=32\n  routing samples", "(method=roe)"]),
        ("epochs", ["method.epochs=", "method=finetune-freeze"]),
        ("compare", ["mode=compare: ", "paired tests"]),
        ("keys", ["limit=null", "model.path", "tuning.n_trials"]),
        ("flags", ["--config-dir FOLDER", "Exit codes: 0 done"]),
    ],
)
def test_a_word_is_explained_whatever_it_names(word, texts, capsys):
    out = run_command(capsys, "--help", word).out
    assert [text for text in texts if text not in out] == []
    assert out.splitlines()[-1] == FOOT
    assert "task.metric" not in run_command(capsys, "--help", "tuning.metric").out, (
        "a key of the group alone"
    )


@pytest.mark.parametrize(
    ("override", "closest"),
    [
        ("method=finetune-freze", "finetune-freeze"),
        ("task=boolqq", "boolq"),
        ("experiment=roe/figur3", "roe/figure3"),
        ("mode=compar", "compare"),
        ("gsm8", "gsm8k"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest(override, closest, capsys):
    ended = run_command(capsys, "--help", "method=base", override)
    assert ended.code == 2
    assert ended.out == ""
    assert f"Did you mean {closest!r}?" in ended.err


def test_options_and_experiments_of_ones_own_are_explained_and_listed(capsys, tmp_path):
    """A name that the package has, too, is the package's, as it is for Hydra."""
    (tmp_path / "method").mkdir()
    own_yaml = (
        "# @package _global_\n# Mine\n\n# two\n# lines\nname: roe # what it is\nlist:\n"
        "  # inner\n  - 1\n- 2\nbare: x\n"
    )
    (tmp_path / "method" / "mine.yaml").write_text(own_yaml)
    (tmp_path / "method" / "roe.yaml").write_text("# Another\nname: roe\n")
    beside = ("--config-dir", str(tmp_path), "--help")
    assert "  bare: x" in run_command(capsys, *beside, "method=mine").out
    assert "  n: 32" in run_command(capsys, *beside, "method=roe").out
    listed = run_command(capsys, *beside, "method=").out
    assert "  mine             Mine" in listed
    assert "Another" not in listed
    (tmp_path / "experiments" / "own").mkdir(parents=True)
    table = (
        "# My table\ntitle: Mine\nsource: me\nscales: {tiny: {grid: {method: [base, roe]}}}\n"
        "rows: [method]\ncolumns: [task]\n"
    )
    (tmp_path / "experiments" / "own" / "table.yaml").write_text(table)
    listed = run_command(capsys, *beside, "experiment=").out
    assert re.search("^  own/table +My table$", listed, re.MULTILINE)
    assert "  roe/figure3 " in listed
    assert "scale=tiny     2 cells" in run_command(capsys, *beside, "experiment=own/table").out


def test_names_of_folders_are_printed_without_their_control_characters(tmp_path, capsys):
    """In the reasons of a plan, and in the paths of results and of what a command waits for."""
    red = tmp_path / "red\x1b[31m"
    models = f"model.path={save_model(make_model('olmoe'), red)},{tmp_path}/none\x1b[31m"
    plan = run_command(
        capsys, "-m", "method=base", "task=toy_math", models, "mode=plan", f"output_dir={tmp_path}"
    )
    assert "There is no folder" in plan.out
    assert r"none\x1b[31m" in plan.out
    stored = run_command(capsys, "mode=report", f"output_dir={red}")
    assert r"red\x1b[31m" in stored.out + stored.err
    assert "\x1b" not in plan.out + plan.err + stored.out + stored.err
