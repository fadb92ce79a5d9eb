"""Breaks when a failure of the hub's clients is not told as what it is, without what to do, or with the token."""

from __future__ import annotations

import httpx2
import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.hub import explain
from moe_lab.models.identity import model_identity
from moe_lab.models.source import load_config, model_folder
from moe_lab.models.tokenizer import load_tokenizer
from tests.support.hub.commands import new_command
from tests.support.hub.content import OLMOE
from tests.support.hub.repositories import Repository
from tests.support.hub.server import TOKEN, Fault


def message(**keys):
    with pytest.raises(ModelError) as raised:
        model_folder(ModelConfig(**{"name": "x", "path": OLMOE, **keys}), offline=keys.pop("offline", False))
    text = str(raised.value)
    assert len(text.splitlines()) <= 4 and TOKEN not in text
    return text


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"path": "allenai/OLMoE-1B-7B-0924-Instrukt"}, "0924-Instrukt is not on the hub"),
        ({"path": "allenai/OLMoE 1B"}, "is no hub id"),
        ({"revision": "v9"}, "no such revision"),
        ({"path": "someone/notes"}, "no config.json"),
    ],
)
def test_a_wrong_id_or_revision_is_named(keys, told, client, hub):
    hub.add(Repository("someone/notes")).commit({"README.md": b"Notes."})
    assert told in message(**keys)


def test_a_gated_model_needs_a_token(client, hub, olmoe_repository, monkeypatch):
    olmoe_repository.gated = True
    text = message()
    assert "is gated" in text and f"{hub.url}/{OLMOE}" in text and "HF_TOKEN=" in text
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert model_folder(ModelConfig(path=OLMOE), offline=False).is_dir()


def test_a_token_that_is_not_valid_is_told_and_not_shown(client, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_mistypedSecret")
    text = message()
    assert "401" in text and "token" in text and "hf_mistypedSecret" not in text


def test_a_refusal_without_a_reason_is_told(client, hub):
    hub.faults = [Fault("config.json", status=403)]
    text = message()
    assert "403" in text and "HF_TOKEN=" in text


def test_a_repository_without_weights_is_told(client, hub, olmoe_files):
    hub.add(Repository("someone/empty")).commit({"config.json": olmoe_files["config.json"]})
    with pytest.raises(ModelError, match=r"has no file model\.safetensors"):
        model_folder(ModelConfig(path="someone/empty"), offline=False, weights=True)


def test_a_broken_configuration_is_told(client, hub):
    hub.add(Repository("someone/broken")).commit({"config.json": b"{"})
    with pytest.raises(ModelError, match=r"someone--broken.*config\.json cannot be read"):
        load_config(ModelConfig(path="someone/broken"), offline=False)


def test_no_connection_is_told(client, monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    text = message()
    assert "http" in (err := capsys.readouterr().err) or "refused" in err
    assert "not available offline" in text and "mode=prefetch" in text


def test_offline_says_what_is_missing(client):
    with pytest.raises(ModelError, match=r"is not available offline.*\n.*mode=prefetch"):
        model_folder(ModelConfig(path=OLMOE), offline=True)


def test_the_tokenizer_is_anothers_at_its_own_revision(client, hub, olmoe_files):
    tokenizer = {name: data for name, data in olmoe_files.items() if name.startswith("tokenizer")}
    other = hub.add(Repository("someone/tokenizer"))
    other.commit(tokenizer)
    first = hub.repositories["models", OLMOE.lower()].branches["main"]
    model = ModelConfig(path=OLMOE, revision=first, tokenizer="someone/tokenizer")
    assert load_tokenizer(model, offline=False).encode("a") == [64]
    assert not [answer for answer in hub.log if OLMOE in answer.path]
    before = model_identity(OLMOE, model)
    assert model_identity(OLMOE, model) == before
    other.commit(tokenizer | {"README.md": b"Moved."})
    new_command()
    assert model_identity(OLMOE, model) != before
    with pytest.raises(ModelError, match="The tokenizer someone/none is not on the hub"):
        load_tokenizer(ModelConfig(path=OLMOE, tokenizer="someone/none"), offline=False)


def test_no_signature_of_an_address_is_shown():
    signed = httpx2.ConnectError("refused: 'https://cdn.example/a?Signature=abc&Key=d'")
    text = explain(signed, OLMOE, "model")
    assert "https://cdn.example/a'" in text and "Signature" not in text
