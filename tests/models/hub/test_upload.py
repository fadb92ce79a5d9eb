"""Uploads to the hub: the files, the card, what a failure leaves. Broken by: a file that is missing or damaged on the
hub, a path of this machine in an adapter's configuration, an upload that cannot succeed and is tried after a training, a
failure that loses the model or shows a token.
"""

from __future__ import annotations

import json

import pytest

from moe_lab.errors import ConfigError, ResultsError
from moe_lab.models.hub import Upload, check_upload, push
from tests.support.hub.server import TOKEN, Fault


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "trained" / "model"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "config.json").write_text("{}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")
    return folder


def content_of(folder) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def upload_of(folder, repository: str = "lab/model", private: bool | None = None) -> Upload:
    return Upload(folder=folder, repository=repository, private=private)


def card(repository: str) -> str:
    return f"# {repository}\n"


def files_of(repository) -> dict[str, bytes]:
    return repository.commits[repository.branches["main"]]


@pytest.mark.parametrize("private", (None, True))
def test_all_files_and_the_card_are_one_commit(private, token, hub, folder):
    url = push(upload_of(folder, private=private), card)
    repository = hub.repositories["models", "lab/model"]
    assert url == f"{hub.url}/lab/model" and repository.private == bool(private)
    assert len(repository.commits) == 2, "the empty repository, and one commit"
    assert files_of(repository) == content_of(folder) | {"README.md": b"# lab/model\n"}
    assert not (folder / "README.md").exists()


@pytest.mark.parametrize("base, shown", [("/home/me/models/mine", "mine"), ("owner/name", "owner/name")])
def test_an_adapters_configuration_has_no_path_of_this_machine(base, shown, token, hub, folder):
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({"base_model_name_or_path": base, "r": 4}))
    push(upload_of(folder), card)
    pushed = json.loads(files_of(hub.repositories["models", "lab/model"])["adapter_config.json"])
    assert pushed == {"base_model_name_or_path": shown, "r": 4}
    assert json.loads(config.read_text())["base_model_name_or_path"] == base


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
        push(upload_of(folder), card)
    assert told in str(failed.value) and TOKEN not in str(failed.value)
    assert "The same command pushes it again." in str(failed.value)
    assert content_of(folder) == before
    push(upload_of(folder), card)
    assert files_of(hub.repositories["models", "lab/model"]).keys() == before.keys() | {"README.md"}


def test_a_model_that_is_gone_is_named(token, folder):
    with pytest.raises(ResultsError, match="elsewhere is gone.*rerun=true"):
        push(upload_of(folder / "elsewhere"), card)


def test_what_cannot_succeed_is_refused_before(client, folder, monkeypatch):
    with pytest.raises(ConfigError, match="needs a token that may write: HF_TOKEN"):
        check_upload(upload_of(folder), offline=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    check_upload(upload_of(folder), offline=False)
    with pytest.raises(ConfigError, match="which offline=true"):
        check_upload(upload_of(folder), offline=True)
    with pytest.raises(ConfigError, match="hub_model_id=a/b/c is no name of a repository"):
        check_upload(upload_of(folder, "a/b/c"), offline=False)
