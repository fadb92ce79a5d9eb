"""`method.push_to_hub=true` from the command line, on the loopback hub.

Broken by: a push that changes the run's id or trains again, a failed push that loses results or the model, an adapter on
the hub that answers otherwise than the one that was trained, a card without the scores, two models in one repository.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moe_lab.methods.finetune_freeze import training
from tests.support.command import run_command
from tests.support.hub.commands import new_command
from tests.support.hub.content import OLMOE
from tests.support.hub.server import TOKEN, Fault

SHORT = [
    "method=finetune-freeze",
    "task=toy_choice",
    "limit=4",
    "method.max_steps=2",
    "method.validation_size=4",
]
LORA = [*SHORT, f"model.path={OLMOE}", "method.lora.r=2", "method.learning_rate=0.05"]
PUSH = ["method.push_to_hub=true", "method.hub_model_id=lab/adapter"]


def result_of(ended) -> dict:
    return json.loads(Path(ended.out.splitlines()[-1]).read_text())


def answers_in(folder: Path, method: str) -> list:
    [samples] = folder.glob(f"runs/*-{method}-*/samples_*.jsonl")
    return [json.loads(line)["resps"] for line in samples.read_text().splitlines()]


@pytest.mark.slow
def test_an_adapter_is_pushed_with_its_scores_and_answers_the_same_from_there(
    token, hub, tmp_path, capsys, monkeypatch
):
    command = [*LORA, f"output_dir={tmp_path / 'outputs'}"]
    hub.faults.append(Fault("/commit/", status=500))
    failed = run_command(capsys, *command, *PUSH)
    assert failed.code == 1 and "was not pushed" in failed.err
    assert "Traceback" not in failed.err and TOKEN not in failed.err
    result = result_of(failed)

    monkeypatch.setattr(training, "train", None)
    again = run_command(capsys, *command, *PUSH)
    assert again.code == 0, again.err
    assert f"pushed to {hub.url}/lab/adapter" in again.err
    assert result_of(again)["moe_lab"]["run_id"] == result["moe_lab"]["run_id"]
    repository = hub.repositories["models", "lab/adapter"]
    files = repository.commits[repository.branches["main"]]
    card = files["README.md"].decode()
    assert f"base_model: {OLMOE}" in card and "library_name: peft" in card
    assert f"{result['results']['toy_choice']['acc,none']:.4f}" in card and "PARTIAL" in card
    assert str(tmp_path) not in "".join(content.decode("latin-1") for content in files.values())

    new_command()
    keys = [f"model.path={OLMOE}", "model.peft=lab/adapter", "task=toy_choice", "limit=4"]
    plain = run_command(capsys, "method=base", *keys, f"output_dir={tmp_path / 'plain'}")
    assert plain.code == 0, plain.err
    assert answers_in(tmp_path / "plain", "base") == answers_in(tmp_path / "outputs", "finetune-freeze")


@pytest.mark.slow
def test_two_tasks_are_one_push_with_the_scores_of_both(token, hub, tmp_path, capsys):
    keys = ["method.push_to_hub=true", "method.hub_private_repo=true", "task=toy_choice,toy_math"]
    command = ["-m", *SHORT, f"model.path={OLMOE}", *keys, f"output_dir={tmp_path}"]
    ended = run_command(capsys, *command)
    assert ended.code == 0, ended.err
    [folder] = (tmp_path / "models").iterdir()
    repository = hub.repositories["models", f"someone/{folder.name}".lower()]
    assert repository.private and len(repository.commits) == 2
    files = repository.commits[repository.branches["main"]]
    assert files["model.safetensors"] == (folder / "model" / "model.safetensors").read_bytes()
    card = files["README.md"].decode()
    assert "| toy_choice | acc,none | 4 |" in card and "| toy_math | exact_match,none | 4 |" in card


@pytest.mark.parametrize(
    "keys, told",
    [
        pytest.param(
            [*PUSH, "-m", "method.lora.r=2,4"],
            "method.hub_model_id=lab/adapter is one repository",
            marks=pytest.mark.slow,
        ),
        ([*PUSH, "seeds=2"], "this command trains several models"),
        ([*PUSH, "offline=true"], "needs the network"),
        (["method.hub_model_id=lab/adapter"], "has no effect without method.push_to_hub=true"),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_weights_load(
    keys, told, token, hub, tmp_path, capsys, loads
):
    ended = run_command(capsys, *SHORT, "method.lora.r=2", *keys, f"output_dir={tmp_path}")
    assert ended.code == 2 and told in ended.err, ended.err
    assert not loads and not (tmp_path / "models").exists()


def test_a_push_without_a_token_is_refused_and_can_be_planned(client, tmp_path, capsys, loads):
    out = f"output_dir={tmp_path}"
    ended = run_command(capsys, *SHORT, *PUSH, out)
    assert ended.code == 2 and "needs a token that may write" in ended.err
    planned = run_command(capsys, *SHORT, *PUSH, "mode=plan", out)
    assert planned.code == 0, planned.err
    assert not loads


@pytest.mark.slow
def test_models_of_an_experiment_are_not_pushed(token, tmp_path, capsys, loads):
    out = f"output_dir={tmp_path}"
    ended = run_command(capsys, "experiment=freezing", "method.push_to_hub=true", out)
    assert ended.code == 2 and "Leave it out, and push one by its own command" in ended.err, ended.err
    assert not loads
