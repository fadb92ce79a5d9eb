"""The commands of docs/doors.md.

Broken by: an example that is refused, a key that must be quoted, a page that is older than the
code.
"""

import re
import shlex
from pathlib import Path

import pytest

from moe_lab.runs.config import compose_or_explain, to_configs
from tests.support.command import run_command

PAGE = Path(__file__).parents[1] / "docs" / "doors.md"
SHORT = {
    "finetune-freeze": ["method.max_steps=4", "method.dataset_size=40", "method.validation_size=8"],
    "pretrain": ["method.steps=4", "method.batch_size=2", "method.validation_rows=2"],
    "soft-prompt": ["method.epochs=1", "method.reference_size=8"],
}
"""Overrides by which a training ends soon."""


def examples() -> list[list[str]]:
    """The arguments of each command of the page."""
    commands = []
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[:3] == ["python", "-m", "moe_lab"]:
                commands.append(words[3:])
    return commands


def reads_the_hub(arguments: list[str]) -> bool:
    """Whether an example trains on a data set of the hub, which no test can reach."""
    paths = [word for word in arguments if word.startswith("method.dataset.path=")]
    return any(path != "method.dataset.path=csv" for path in paths)


HERE = [arguments for arguments in examples() if not reads_the_hub(arguments)]


@pytest.fixture(autouse=True)
def folder_with_answers(tmp_path, monkeypatch):
    """The working folder has the file that an example names."""
    lines = ["prompt,completion", *[f"Question {n}?,Answer {n}" for n in range(20)]]
    (tmp_path / "answers.csv").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)


def test_an_example_that_reads_the_hub_composes():
    for arguments in examples():
        assert to_configs(compose_or_explain(arguments))


def test_what_an_option_of_ones_own_says_can_be_removed(tmp_path):
    option = tmp_path / "method" / "mine.yaml"
    option.parent.mkdir()
    option.write_text("defaults: [finetune-freeze]\ntrainer: {optim: sgd, max_grad_norm: 0.5}\n")
    mine = [f"--config-dir={tmp_path}", "method=mine", "output_dir=o"]
    [whole] = to_configs(compose_or_explain(mine))
    [one_field] = to_configs(compose_or_explain([*mine, "~method.trainer.max_grad_norm"]))
    [none] = to_configs(compose_or_explain([*mine, "~method.trainer"]))
    assert whole.method.trainer == {"max_grad_norm": 0.5}
    assert one_field.method.trainer == {}
    assert one_field.method.optimizer == "sgd"
    assert none.method.optimizer == "adamw_torch"


def test_no_example_is_quoted():
    for arguments in examples():
        assert not any(re.search(r"[{}'\"+]", argument) for argument in arguments)


@pytest.mark.parametrize("arguments", HERE, ids=" ".join)
def test_an_example_is_planned(arguments, tmp_path, capsys):
    run = run_command(capsys, *arguments, "mode=plan", f"output_dir={tmp_path}")
    assert run.code == 0, run.err


@pytest.mark.slow
@pytest.mark.parametrize("arguments", HERE, ids=" ".join)
def test_an_example_runs(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    short = []
    arguments = [argument.replace("/tmp/moe_lab", f"{tmp_path}/moe_lab") for argument in arguments]
    for name, overrides in SHORT.items():
        if f"method={name}" in arguments:
            typed = {argument.partition("=")[0] for argument in arguments}
            short += [line for line in overrides if line.partition("=")[0] not in typed]
    if any(argument.startswith("tuning=") for argument in arguments):
        short += ["tuning.n_trials=3", "tuning.num_samples=4", "method.n=2", "seeds=1"]
    run = run_command(capsys, *arguments, *short, "limit=4", f"output_dir={tmp_path}")
    assert run.code == 0, run.err
