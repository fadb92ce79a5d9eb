"""`--help` and what is named beside it. Broken by: another file's YAML, a key that is not named."""

import re

import pytest

from moe_lab.cli.help import FOOT, GROUPS
from moe_lab.config.catalog import option_files, resource_folder
from tests.support.command import run_command

CONF = resource_folder("conf")
OPTIONS = [(group, name) for group in GROUPS for name in option_files(group, [CONF])]


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_an_options_yaml_is_shown(group, name, capsys):
    ended = run_command(capsys, "--help", f"{group}={name}")
    lines = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    shown = "\n".join(f"  {line}".rstrip() if line else "" for line in lines)
    assert ended.code == 0 and f"{group}={name}\n\n{shown}\n" in ended.out
    assert ended.out.splitlines()[-1] == FOOT and "Exit codes" not in ended.out


def test_several_options_are_explained_at_once_and_each_once(capsys):
    out = run_command(capsys, "-m", "method=roe,c2r", "task=boolq", "method=c2r", "seed=1", "--help").out
    heads = [line for line in out.splitlines() if re.fullmatch(r"\w+=\S+", line)]
    assert heads == ["method=roe", "method=c2r", "task=boolq"]
    out = run_command(capsys, "--help", "experiment=roe/figure3").out
    assert "RoE, Figure 3" in out and re.search(r"scale=tiny +\d+ cells", out)


def test_what_names_no_option_is_the_overview(capsys):
    out = run_command(capsys, "--help", "method.n=3", "limit=5").out
    assert out == run_command(capsys, "--help").out
    assert len(out.splitlines()) <= 40 and "--help <word>" in out and "Exit codes" not in out
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
    assert [text for text in texts if text not in out] == [] and out.splitlines()[-1] == FOOT
    assert "task.metric" not in run_command(capsys, "--help", "tuning.metric").out, "a key of the group alone"


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
    assert ended.code == 2 and ended.out == "" and f"Did you mean {closest!r}?" in ended.err


def test_an_option_of_ones_own_is_explained(capsys, tmp_path):
    """A name that the package has, too, is the package's, as it is for Hydra."""
    (tmp_path / "method").mkdir()
    own = "# @package _global_\n# Mine\n\n# two\n# lines\nname: roe # what it is\nlist:\n  # inner\n  - 1\n- 2\nbare: x\n"
    (tmp_path / "method" / "mine.yaml").write_text(own)
    (tmp_path / "method" / "roe.yaml").write_text("# Another\nname: roe\n")
    beside = ("--config-dir", str(tmp_path), "--help")
    assert "  bare: x" in run_command(capsys, *beside, "method=mine").out
    assert "  n: 32" in run_command(capsys, *beside, "method=roe").out
    listed = run_command(capsys, *beside, "method=").out
    assert "  mine             Mine" in listed and "Another" not in listed


def test_a_group_without_an_option_lists_its_options(capsys, tmp_path):
    """Own options and experiments stand in the list, too."""
    (tmp_path / "experiments" / "own").mkdir(parents=True)
    own = (
        "# My table\ntitle: Mine\nsource: me\nscales: {tiny: {grid: {method: [base, roe]}}}\n"
        "rows: [method]\ncolumns: [task]\n"
    )
    (tmp_path / "experiments" / "own" / "table.yaml").write_text(own)
    beside = ("--config-dir", str(tmp_path), "--help")
    listed = run_command(capsys, *beside, "experiment=").out
    assert "  own/table        My table" in listed and "  roe/figure3 " in listed
    assert "scale=tiny     2 cells" in run_command(capsys, *beside, "experiment=own/table").out
