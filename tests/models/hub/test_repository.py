"""Models of the hub: revisions and commits, what is fetched, and messages about failures.

Broken by: a revision that is not pinned to its commit, a hub that is asked again or waited for,
a file that is fetched twice or left out, a failure whose message names another cause, without
what to do or with the token.
"""

import io
import json
import os
import time

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load

from moe_lab.config.schema import Config, ModelConfig, TuningConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods import get_method
from moe_lab.methods.references import embeddings
from moe_lab.methods.references.embeddings import embed, embedding_identity
from moe_lab.models.hub import commit_of
from moe_lab.models.identity import known_weights, model_identity
from moe_lab.models.load import load_model
from moe_lab.models.load_options import with_load
from moe_lab.models.source import check_has_weights, load_config, model_commit, model_folder
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.runs.tuning.prepare import prepare_study
from tests.support.hub.commands import new_command
from tests.support.hub.content import OLMOE, SHARDS
from tests.support.hub.repositories import Repository
from tests.support.hub.server import TOKEN, Fault

MODEL = ModelConfig(name="olmoe", path=OLMOE)
SHARD = "model-00002-of-00005.safetensors"


def weights(path=OLMOE, offline=False):
    return model_folder(ModelConfig(path=path), offline=offline, weights=True)


@pytest.fixture
def second(olmoe_repository, olmoe_files):
    """A second commit: `main` moves to it, the tag `paper` stays."""
    first = olmoe_repository.branches["main"]
    olmoe_repository.branches["paper"] = first
    return first, olmoe_repository.commit(olmoe_files | {"README.md": b"Newer.\n"})


@pytest.mark.parametrize(
    ("revision", "which"), [(None, 1), ("main", 1), ("paper", 0), ("commit", 0)]
)
def test_a_branch_a_tag_and_a_commit_are_pinned(client, second, revision, which):
    revision = second[0] if revision == "commit" else revision
    model = ModelConfig(name="olmoe", path=OLMOE, revision=revision)
    assert model_commit(model, offline=False) == second[which]
    assert model_folder(model, offline=False).name == second[which]
    assert (model_folder(model, offline=False) / "config.json").is_file()
    new_command()
    assert model_commit(model, offline=True) == second[which]


def test_only_the_next_command_sees_a_new_commit(client, olmoe_repository, olmoe_files, tmp_path):
    """A moved branch is another study, too."""
    config = Config(
        model=MODEL,
        method=get_method("roe").Config(name="roe", n=2),
        tuning=TuningConfig(
            name="tpe", n_trials=2, num_samples=4, metric="perplexity", max_temperature=1.0
        ),
        output_dir=str(tmp_path),
        device="cpu",
    )
    before = model_commit(MODEL, offline=False)
    study = prepare_study(config).study_id
    after = olmoe_repository.commit(olmoe_files | {"README.md": b"Moved.\n"})
    assert model_commit(MODEL, offline=False) == before
    assert prepare_study(config).study_id == study
    new_command()
    assert model_commit(MODEL, offline=False) == after != before
    assert prepare_study(config).study_id != study


def test_the_hub_is_asked_once_and_nothing_is_fetched_again(client, hub):
    weights()
    before = len(hub.log)
    weights()
    assert len(hub.log) == before
    new_command()
    weights()
    assert [answer.path for answer in hub.log[before:]] == [f"api/models/{OLMOE}"]


@pytest.mark.parametrize(
    "fault", [Fault("api/", stall=3, times=9), Fault("api/", status=503, times=9)]
)
def test_a_hub_that_does_not_answer_is_left_for_the_cache(client, hub, fault, capsys):
    commit = model_commit(MODEL, offline=False)
    weights()
    new_command()
    hub.faults = [fault]
    start = time.monotonic()
    assert model_commit(MODEL, offline=False) == commit
    assert weights().is_dir()
    assert time.monotonic() - start < 2.5  # one time-out of a second, not one per file
    assert capsys.readouterr().err.count("cannot be reached") == 1


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_offline_asks_nobody(client, hub, monkeypatch, by):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", by == "environment")
    with pytest.raises(LocalEntryNotFoundError):
        commit_of(OLMOE, offline=by == "argument")
    assert hub.log == []


def test_weights_are_those_that_transformers_loads(client, hub, olmoe_repository):
    files = known_weights(weights())
    assert files[0] == "model.safetensors.index.json"
    assert len(files) > SHARDS
    for name in files[1:]:
        assert name.endswith(".safetensors")


def as_bin(files: dict[str, bytes], shards: int) -> dict[str, bytes]:
    """The same repository with its weights in .bin files alone: one, or several with an index."""
    tensors = {}
    for name, data in files.items():
        if name.endswith(".safetensors"):
            tensors |= load(data)
    other_files = {name: data for name, data in files.items() if "safetensors" not in name}
    other_files.pop("pytorch_model.bin")
    if shards == 1:
        return other_files | {"pytorch_model.bin": saved(tensors)}
    weight_map = {}
    for shard in range(shards):
        part = f"pytorch_model-{shard + 1:05}-of-{shards:05}.bin"
        of_shard = {name: tensors[name] for name in list(tensors)[shard::shards]}
        other_files[part] = saved(of_shard)
        weight_map |= dict.fromkeys(of_shard, part)
    index = {"metadata": {}, "weight_map": weight_map}
    return other_files | {"pytorch_model.bin.index.json": json.dumps(index).encode()}


def saved(tensors: object) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


@pytest.mark.parametrize("shards", [1, 3])
def test_a_repository_with_bin_files_alone_is_the_same_model(
    client, olmoe_files, olmoe_repository, shards
):
    """`.bin` is what the reward model of Bianchi et al. and DeepSeek-7B are published in."""
    options = {"dtype": "float32", "device": "cpu", "offline": False}
    expected = load_model(MODEL, **options).model.state_dict()
    olmoe_repository.commit(as_bin(olmoe_files, shards))
    new_command()
    loaded_weights = load_model(MODEL, **options).model.state_dict()
    assert loaded_weights.keys() == expected.keys()
    for name in expected:
        assert torch.equal(loaded_weights[name], expected[name])
    assert len(known_weights(weights())) == (1 if shards == 1 else shards + 1)


def as_variant(files: dict[str, bytes], variant: str) -> dict[str, bytes]:
    """The same repository with its weights in files of a variant, next to plain ones of zeros."""
    variant_files = {}
    for name, data in files.items():
        if name == "model.safetensors.index.json":
            name = f"model.safetensors.index.{variant}.json"
        variant_files[name] = data
    return variant_files | {"model.safetensors": b"not read"}


@pytest.mark.parametrize(
    ("load", "folder"),
    [
        ({"variant": "fp16"}, ""),
        ({"subfolder": "checkpoints/last"}, "checkpoints/last/"),
        ({"subfolder": "last", "variant": "fp16"}, "last/"),
    ],
)
def test_a_variant_or_a_subfolder_is_the_same_model(
    load, folder, client, olmoe_files, olmoe_repository, tmp_path
):
    options = {"dtype": "float32", "device": "cpu", "offline": False}
    expected = load_model(MODEL, **options).model.state_dict()
    files = as_variant(olmoe_files, "fp16") if "variant" in load else olmoe_files
    placed = {folder + name: data for name, data in files.items()}
    olmoe_repository.commit(placed | {"model.bin": b"not read"})
    new_command()
    of_hub = ModelConfig(name="olmoe", path=OLMOE, load=load)
    for name, data in placed.items():
        file = tmp_path / "local" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    local = ModelConfig(name="olmoe", path=str(tmp_path / "local"), load=load)
    for model in (of_hub, local):
        loaded_weights = load_model(with_load(model), **options).model.state_dict()
        assert loaded_weights.keys() == expected.keys()
        for name in expected:
            assert torch.equal(loaded_weights[name], expected[name])
    assert not list(client.rglob("model.bin")), "nothing else is fetched"
    assert not list(client.rglob("model.safetensors"))
    new_command()
    assert model_folder(of_hub, offline=True, weights=True).is_dir()


def test_a_variant_that_a_model_does_not_have_is_named(client):
    model = ModelConfig(name="olmoe", path=OLMOE, load={"variant": "fp61"})
    with pytest.raises(ModelError, match="neither model.fp61.safetensors nor"):
        model_folder(model, offline=False, weights=True)


class Payload:
    def __reduce__(self):
        return (os.system, ("echo executed",))


def test_a_bin_file_that_holds_more_than_tensors_is_refused(
    client, olmoe_files, olmoe_repository, capfd
):
    files = as_bin(olmoe_files, 1)
    olmoe_repository.commit(files | {"pytorch_model.bin": saved({"weight": Payload()})})
    new_command()
    with pytest.raises(ModelError, match="hold more than tensors, of which nothing is executed"):
        load_model(MODEL, dtype="float32", device="cpu", offline=False)
    assert "executed" not in capfd.readouterr().out


def test_a_repository_without_weights_is_refused_before_anything_is_fetched(
    client, hub, olmoe_repository
):
    olmoe_repository.commit({"config.json": b'{"model_type": "olmoe"}', "model.onnx": b"weights"})
    new_command()
    with pytest.raises(ModelError, match="has no weights that can be read"):
        check_has_weights(MODEL, offline=False)
    hub.add(Repository("sentence-transformers/all-nothing")).commit({"modules.json": b"[]"})
    with pytest.raises(ConfigError, match="embeddings=all-nothing has no weights"):
        embedding_identity("all-nothing")


def test_the_same_command_fetches_what_is_left(client, hub, olmoe_files):
    hub.faults = [Fault(f"/{SHARD}", status=403, times=99)]
    with pytest.raises(ModelError, match="403"):
        weights()
    with pytest.raises(ModelError, match="not available offline"):
        weights(offline=True)
    hub.faults = []
    sent = len(hub.ranges(".safetensors"))
    new_command()
    assert (weights() / SHARD).read_bytes() == olmoe_files[SHARD]
    assert len(hub.ranges(".safetensors")) < sent + 5
    new_command()
    assert (weights(offline=True) / SHARD).is_file()


def test_only_one_format_is_fetched_and_no_token_leaves_the_hub(client, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert not (weights() / "pytorch_model.bin").exists()
    assert any(answer.authorized for answer in hub.log)
    assert not any(answer.authorized for answer in hub.log if answer.path.startswith("cdn/"))


# Failures


def message(**keys):
    with pytest.raises(ModelError) as raised:
        model_folder(ModelConfig(**{"name": "x", "path": OLMOE, **keys}), offline=False)
    text = str(raised.value)
    assert len(text.splitlines()) <= 4
    assert TOKEN not in text
    return text


@pytest.mark.parametrize(
    ("keys", "error_message"),
    [
        ({"path": "allenai/OLMoE-1B-7B-0924-Instrukt"}, "0924-Instrukt is not on the hub"),
        ({"path": "allenai/OLMoE 1B"}, "is no hub id"),
        ({"revision": "v9"}, "no such revision"),
        ({"path": "someone/notes"}, "no config.json"),
    ],
)
def test_a_wrong_id_or_revision_is_named(keys, error_message, client, hub):
    hub.add(Repository("someone/notes")).commit({"README.md": b"Notes."})
    assert error_message in message(**keys)


def test_a_gated_model_needs_a_token(client, hub, olmoe_repository, monkeypatch):
    olmoe_repository.gated = True
    text = message()
    assert "is gated" in text
    assert f"{hub.url}/{OLMOE}" in text
    assert "HF_TOKEN=" in text
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert model_folder(ModelConfig(path=OLMOE), offline=False).is_dir()


def test_what_a_repository_lacks_or_has_broken_is_told(client, hub, olmoe_files):
    lacking = {name: data for name, data in olmoe_files.items() if name != SHARD}
    for name, files, says in (
        (
            "someone/empty",
            {"config.json": olmoe_files["config.json"]},
            "has no weights that can be read",
        ),
        ("someone/lacking", lacking, f"has no file {SHARD}"),
    ):
        hub.add(Repository(name)).commit(files)
        with pytest.raises(ModelError, match=says):
            weights(name)
    hub.add(Repository("someone/broken")).commit({"config.json": b"{"})
    with pytest.raises(ModelError, match=r"someone--broken.*config\.json cannot be read"):
        load_config(ModelConfig(path="someone/broken"), offline=False)


def test_the_password_of_a_hub_is_not_printed(client, monkeypatch, capsys):
    monkeypatch.setattr(constants, "ENDPOINT", "http://me:secret@127.0.0.1:9")
    text = message()
    err = capsys.readouterr().err
    assert "cannot be reached" in err
    assert "secret" not in err + text


def test_no_connection_is_told_at_once(client, monkeypatch, capsys):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    text = message()
    assert "refused" in capsys.readouterr().err
    assert time.monotonic() - start < 2
    assert "not available offline" in text
    assert "mode=prefetch" in text


def test_the_tokenizer_is_anothers_at_its_own_revision(client, hub, olmoe_files):
    tokenizer = {name: data for name, data in olmoe_files.items() if name.startswith("tokenizer")}
    other_repository = hub.add(Repository("someone/tokenizer"))
    other_repository.commit(tokenizer)
    first = hub.repositories["models", OLMOE.lower()].branches["main"]
    model = ModelConfig(path=OLMOE, revision=first, tokenizer="someone/tokenizer")
    assert load_tokenizer(model, offline=False).encode("a") == [64]
    assert not [answer for answer in hub.log if OLMOE in answer.path]
    before = model_identity(OLMOE, model)
    assert model_identity(OLMOE, model) == before
    other_repository.commit(tokenizer | {"README.md": b"Moved."})
    new_command()
    assert model_identity(OLMOE, model) != before
    with pytest.raises(ModelError, match="The tokenizer someone/none is not on the hub"):
        load_tokenizer(ModelConfig(path=OLMOE, tokenizer="someone/none"), offline=False)


def encoder_files(folder, tokenizer, seed: int) -> dict[str, bytes]:
    """A small random BERT as sentence-transformers publishes it."""
    import transformers

    package = pytest.importorskip("sentence_transformers")
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
    }
    transformers.BertModel(transformers.BertConfig(vocab_size=300, **sizes)).save_pretrained(
        folder / "plain"
    )
    tokenizer.save_pretrained(folder / "plain")
    package.SentenceTransformer(str(folder / "plain")).save(str(folder / "saved"))
    files = [file for file in (folder / "saved").rglob("*") if file.is_file()]
    return {file.relative_to(folder / "saved").as_posix(): file.read_bytes() for file in files}


def test_embeddings_are_of_one_commit_which_is_in_their_identity(client, hub, tmp_path, tokenizer):
    """A branch that moves between references and questions would compare vectors of two models."""
    texts = ["a cat", "two and two"]
    repository = hub.add(Repository("sentence-transformers/small"))
    first = repository.commit(encoder_files(tmp_path / "first", tokenizer, seed=0))
    assert embedding_identity("small") == {"embeddings": "small", "commit": first}
    of_first = embed(texts, "small", None)
    second = repository.commit(encoder_files(tmp_path / "second", tokenizer, seed=1))
    embeddings._encoder.cache_clear()
    assert torch.equal(embed(texts, "small", None), of_first), "this process stays at its commit"
    new_command()
    embeddings._encoder.cache_clear()
    assert embedding_identity("small") == {"embeddings": "small", "commit": second}
    assert not torch.allclose(embed(texts, "small", None), of_first)
