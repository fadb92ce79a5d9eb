"""`~` in paths that a user gives. A shell leaves it as it is in `output_dir=~/x`.

Broken by: a path that keeps a `~`.
"""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import moe_lab
from moe_lab.config.schema import GROUP_CONFIGS, Config
from moe_lab.config.validators import UserPath, alternatives, build, hints_of
from moe_lab.methods import get_method, method_names
from tests.support.command import FakeRuns, install, run_command
from tests.support.lm_eval_logs import samples_of, write_log

CLASSES = {
    "": Config,
    **{f"{group}.": cls for group, cls in GROUP_CONFIGS.items()},
    **{f"method={name}.": get_method(name).Config for name in method_names()},
}
NO_PATHS = {
    *(
        "name",
        "overrides",
        "config_dirs",
        "metric",
        "data_folder",
        "data_filter",
        "fewshot_split",
        "revision",
    ),
    *(
        "attn_implementation",
        "think_end_token",
        "project",
        "entity",
        "group",
        "tags",
        "judges",
        "cluster",
        "address",
        "storage",
    ),
    *(
        "apply_chat_template",
        "system_instruction",
        "experiment",
        "device",
        "dtype",
        "batch_size",
        "gen_kwargs",
    ),
    *(
        "optimizer",
        "phases",
        "space",
        "recipe",
        "schedule",
        "tokens",
        "layers",
        "reference",
    ),
    "b",  # several, which `moe_lab.compare` expands
    "positive",  # sets of conversations, which `data_files.py` expands
    "negative",
}


@pytest.fixture
def home(monkeypatch, tmp_path) -> Path:
    """The home folder, which is not the working folder."""
    folder = tmp_path / "home"
    working = tmp_path / "working"
    folder.mkdir()
    working.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(working)
    return folder


@pytest.mark.parametrize("prefix", CLASSES)
def test_every_key_with_a_text_is_a_path_or_named_as_none(prefix, home):
    cls = CLASSES[prefix]
    for field in fields(cls):
        annotation = hints_of(cls, include_extras=True)[field.name]
        has_text = re.search(r"\bstr\b", repr(annotation)) is not None
        is_choice = "Literal" in repr(annotation)
        has_keys_of_a_library = annotation == dict[str, Any]
        if not has_text or is_choice or has_keys_of_a_library or field.name in NO_PATHS:
            continue
        assert UserPath in alternatives(annotation), f"{prefix}{field.name}"


def test_the_home_folder_takes_the_place_of_the_tilde(home):
    values = {"output_dir": "~/x", "data_dir": "~", "a": None, "system_instruction": "~/x"}
    config = build(Config, values, "")
    assert config.output_dir == f"{home}/x"
    assert config.data_dir == str(home)
    assert config.system_instruction == "~/x"


def test_every_path_of_a_command(home, capsys, monkeypatch):
    runs = install(monkeypatch, FakeRuns())
    (home / "own" / "model").mkdir(parents=True)
    (home / "own" / "model" / "mine.yaml").write_text("# mine\nname: tiny\n")
    (home / "data").mkdir()
    (home / "idea.py").write_text("def f(router, routing):\n    return routing\n")
    ended = run_command(
        capsys,
        "--config-dir",
        "~/own",
        "model=mine",
        "output_dir=~/out",
        "data_dir=~/data",
        "method=policy",
        "method.policy=~/idea.py:f",
        "baseline=false",
        "task.include_path=~/tasks",
    )
    assert ended.code == 0, ended.err
    [config] = runs.asked
    assert config.output_dir == f"{home}/out"
    assert config.data_dir == f"{home}/data"
    assert config.method.policy == f"{home}/idea.py:f"
    assert config.task.include_path == f"{home}/tasks"
    assert list(Path().iterdir()) == []
    assert (home / "out" / "report.html").is_file()


def test_a_profile_and_a_comparison(home, capsys):
    write_log(home / "a", {"t": samples_of(acc=[0.0, 0.0, 1.0])})
    write_log(home / "b", {"t": samples_of(acc=[1.0, 1.0, 0.0])})
    ended = run_command(capsys, "mode=compare", "a=~/a", "b=~/b", "output_dir=~/out")
    assert ended.code == 0, ended.err
    assert len(list(home.glob("out/comparisons/*/comparison.json"))) == 1
    moe_lab.compare("~/a", "~/b", output_dir="~/again")
    assert (home / "again" / "comparisons").is_dir()
    assert list(Path().iterdir()) == []

    (home / "best.yaml").write_text(yaml.safe_dump({"wrong": 1}))
    for method, key in (("roe", "temperature"), ("calibration", "logit_scale")):
        profile = f"method.{key}=~/best.yaml"
        ended = run_command(capsys, f"method={method}", profile, "mode=plan", "task=toy_math")
        assert ended.code == 2
        assert "wrong" in ended.err, "the file is read"


@pytest.mark.slow
def test_a_run_is_stored_at_home(home, capsys):
    ended = run_command(
        capsys, "method=base", "model=tiny", "task=toy_choice", "limit=2", "output_dir=~/x"
    )
    assert ended.code == 0, ended.err
    assert len(list(home.glob("x/runs/*/results.json"))) == 1
    assert not list(Path().iterdir())
