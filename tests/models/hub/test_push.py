"""Uploads to the hub, and `method.push_to_hub=true` from the command line.

Broken by: a file that is missing or damaged on the hub, a path of this machine in an adapter's configuration, a push that
cannot succeed and is tried after a training, that changes the run's id or trains again; a failure that loses the model or
shows a token; an adapter on the hub that answers otherwise than the one that was trained, a card without the scores.
"""

import json
from pathlib import Path

import pytest

from moe_lab.errors import ConfigError, ResultsError
from moe_lab.methods.finetune_freeze import training
from moe_lab.models.hub import Upload, check_upload, push
from tests.support.command import run_command
from tests.support.hub.commands import new_command
from tests.support.hub.content import OLMOE
from tests.support.hub.server import TOKEN, Fault


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "trained" / "model"
    (folder / "additional_chat_templates").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "config.json").write_text("{}")
    (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")
    return folder


def content_of(folder) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def pushed(folder, repository: str = "lab/model", private: bool | None = None) -> str:
    upload = Upload(folder=folder, repository=repository, private=private)
    return push(upload, lambda repository: f"# {repository}\n")


def files_of(hub, name: str = "lab/model") -> dict[str, bytes]:
    repository = hub.repositories["models", name.lower()]
    return repository.commits[repository.branches["main"]]


@pytest.mark.parametrize("private", (None, True))
def test_all_files_and_the_card_are_one_commit(private, token, hub, folder):
    assert pushed(folder, private=private) == f"{hub.url}/lab/model"
    repository = hub.repositories["models", "lab/model"]
    assert repository.private == bool(private)
    assert len(repository.commits) == 2, "the empty repository, and one commit"
    assert files_of(hub) == content_of(folder) | {"README.md": b"# lab/model\n"}
    assert not (folder / "README.md").exists()


@pytest.mark.parametrize("base, shown", [("/home/me/models/mine", "mine"), ("owner/name", "owner/name")])
def test_an_adapters_configuration_has_no_path_of_this_machine(base, shown, token, hub, folder):
    settings = {"base_model_name_or_path": base, "r": 4}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    pushed(folder)
    found = json.loads(files_of(hub)["adapter_config.json"])
    assert found == settings | {"base_model_name_or_path": shown}
    assert json.loads((folder / "adapter_config.json").read_text()) == settings


@pytest.mark.parametrize(
    "path, status, told",
    [
        ("repos/create", 403, "403 Forbidden"),
        ("/commit/", 500, "500 Internal"),
        ("PUT storage", 400, "Bad request"),
    ],
)
def test_a_failure_is_one_message_and_the_same_upload_then_succeeds(path, status, told, token, hub, folder):
    before = content_of(folder)
    hub.faults.append(Fault(path, status=status))
    with pytest.raises(ResultsError) as failed:
        pushed(folder)
    assert told in str(failed.value) and TOKEN not in str(failed.value)
    assert "The same command pushes it again." in str(failed.value)
    assert content_of(folder) == before
    pushed(folder)
    assert files_of(hub).keys() == before.keys() | {"README.md"}


def test_what_cannot_succeed_is_refused_before(client, folder, monkeypatch):
    def check(offline=False, repository="lab/model"):
        check_upload(Upload(folder=folder, repository=repository, private=None), offline=offline)

    with pytest.raises(ConfigError, match="needs a token that may write: HF_TOKEN"):
        check()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    check()
    with pytest.raises(ConfigError, match="which offline=true"):
        check(offline=True)
    with pytest.raises(ConfigError, match="hub_model_id=a/b/c is no name of a repository"):
        check(repository="a/b/c")
    with pytest.raises(ResultsError, match="elsewhere is gone.*rerun=true"):
        pushed(folder / "elsewhere")


# From the command line

SHORT = "method=finetune-freeze task=toy_choice limit=4 method.max_steps=2 method.validation_size=4".split()
SHORT.append("method.dataset_size=8")
LORA = [*SHORT, f"model.path={OLMOE}", "method.lora.r=2", "method.learning_rate=0.05"]
PUSH = ["method.push_to_hub=true", "method.hub_model_id=lab/adapter"]


def result_of(ended) -> dict:
    return json.loads(Path(ended.out.splitlines()[-1]).read_text())


def answers_in(folder: Path, method: str) -> list:
    [samples] = folder.glob(f"runs/*-{method}-*/samples_*.jsonl")
    return [json.loads(line)["resps"] for line in samples.read_text().splitlines()]


@pytest.mark.slow
def test_an_adapter_that_was_pushed_answers_the_same(token, hub, tmp_path, capsys, monkeypatch):
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
    files = files_of(hub, "lab/adapter")
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
    ended = run_command(capsys, "-m", *SHORT, f"model.path={OLMOE}", *keys, f"output_dir={tmp_path}")
    assert ended.code == 0, ended.err
    [folder] = (tmp_path / "models").iterdir()
    repository = hub.repositories["models", f"someone/{folder.name}".lower()]
    assert repository.private and len(repository.commits) == 2
    files = files_of(hub, f"someone/{folder.name}")
    assert files["model.safetensors"] == (folder / "model" / "model.safetensors").read_bytes()
    card = files["README.md"].decode()
    assert "| toy_choice | acc,none | 4 |" in card and "| toy_math | exact_match,none | 4 |" in card


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "keys, told",
    [
        pytest.param(
            [*PUSH, "-m", "method.lora.r=2,4"], "hub_model_id=lab/adapter is one repository", marks=SLOW
        ),
        ([*PUSH, "seeds=2"], "this command trains several models"),
        ([*PUSH, "offline=true"], "needs the network"),
        (["method.hub_model_id=lab/adapter"], "has no effect without method.push_to_hub=true"),
        pytest.param(["experiment=freezing", *PUSH[:1]], "Leave it out, and push one by its own", marks=SLOW),
    ],
)
def test_what_cannot_be_pushed_is_refused(keys, told, token, hub, tmp_path, capsys, loads):
    command = [] if keys[0].startswith("experiment") else [*SHORT, "method.lora.r=2"]
    ended = run_command(capsys, *command, *keys, f"output_dir={tmp_path}")
    assert ended.code == 2 and told in ended.err, ended.err
    assert not loads and not (tmp_path / "models").exists()


def test_a_push_without_a_token_is_refused_and_can_be_planned(client, tmp_path, capsys, loads):
    out = f"output_dir={tmp_path}"
    ended = run_command(capsys, *SHORT, *PUSH, out)
    assert ended.code == 2 and "needs a token that may write" in ended.err
    planned = run_command(capsys, *SHORT, *PUSH, "mode=plan", out)
    assert planned.code == 0, planned.err
    assert not loads
