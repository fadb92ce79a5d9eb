"""Reference sets. Broken by: a reference that the model got wrong, a pathway or token of another question, a set that
is built twice, a set of another model or prompt that is used.
"""

import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moe_lab.config.schema import Config, ModelConfig, TaskConfig
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.scoring import Budget
from moe_lab.errors import ConfigError
from moe_lab.methods.references import reference_set as references
from moe_lab.methods.references import store as reference_files
from moe_lab.methods.references.reference_set import load_or_build, references_left
from moe_lab.methods.references.store import check_own
from moe_lab.models.load import load_model
from moe_lab.routing import record
from tests.support.documents import OPENBOOKQA, write_vectors
from tests.support.models import make_model
from tests.support.runs import choices, write_jsonl

SETTINGS = SimpleNamespace(
    tokens="last1", reference="openbookqa", reference_size=None, embeddings=None, k=1, epsilon=None
)
QUESTIONS = 30


def rows(count: int) -> list[dict[str, Any]]:
    asked = [{"question_stem": f"Number {i} is", "answerKey": "ABCD"[i % 4]} for i in range(count)]
    return [OPENBOOKQA | one for one in asked]


@pytest.fixture(scope="module")
def models(tmp_path_factory, tokenizer):
    """Folders of two random models."""
    folders = []
    for seed in (0, 1):
        folders.append(tmp_path_factory.mktemp("models") / "small")
        make_model("olmoe", seed).save_pretrained(folders[-1])
        tokenizer.save_pretrained(folders[-1])
    return folders


@pytest.fixture
def config(tmp_path, models, monkeypatch) -> Config:
    write_jsonl(tmp_path / "data" / "arc_easy" / "test.jsonl", choices(3))
    write_jsonl(tmp_path / "data" / "openbookqa" / "train.jsonl", rows(QUESTIONS))
    monkeypatch.setattr(reference_files, "PORTION", 8)
    return Config(
        model=ModelConfig(name="small", path=str(models[0])),
        task=TaskConfig(name="arc_easy", answer="letters"),
        data_dir=str(tmp_path / "data"),
        output_dir=str(tmp_path / "out"),
        offline=True,
        device="cpu",
    )


@pytest.fixture
def stored(config, models) -> Config:
    """`config` whose set is built, once for all tests."""
    built = models[0].parent / "built"
    if not built.exists():
        build(config)
        shutil.copytree(config.output_dir, built)
    shutil.copytree(built, config.output_dir, dirs_exist_ok=True)
    return config


def build(config: Config, **changes: Any):
    loaded = load_model(config.model, dtype="auto", device="cpu", offline=True)
    lm = EngineLM(loaded.model, loaded.tokenizer, progress=False)
    return load_or_build(config, SimpleNamespace(**(vars(SETTINGS) | changes)), loaded, lm), loaded


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """Questions of each set that the model is asked."""
    seen: list[int] = []
    original = reference_files.answered

    def counting(portion: Any, lm: Any) -> Any:
        seen.append(len(portion))
        return original(portion, lm)

    monkeypatch.setattr(reference_files, "answered", counting)
    return seen


def test_references_are_what_the_untouched_model_answers_correctly(config):
    found, loaded = build(config)
    model, tokenizer = loaded.model, loaded.tokenizer
    letters = [tokenizer(f" {letter}").input_ids for letter in "ABCD"]
    kept = 0
    for i, row in enumerate(rows(QUESTIONS)):
        options = "".join(f"{a}. {text}\n" for a, text in zip("ABCD", row["choices"]["text"], strict=True))
        text = f"{row['question_stem']}\n{options}Answer:"
        ids = tokenizer(text).input_ids
        with torch.no_grad(), record(model) as routes:
            scores = [
                model(torch.tensor([ids + letter])).logits[0].log_softmax(-1)[len(ids) - 1 :]
                for letter in letters
            ]
        answered = zip(scores, letters, strict=True)
        totals = [sum(s[j, token] for j, token in enumerate(letter)) for s, letter in answered]
        if int(torch.stack(totals).argmax()) != i % 4:
            assert text not in found.texts
            continue
        where = found.texts.index(text)
        assert found.prompts[where] == ids and found.golds[where] == letters[i % 4]
        assert found.golds[where][0] == letters[i % 4][0]
        expected = torch.stack([logits[len(ids) - 1].softmax(-1) for logits in routes.logits])
        assert torch.allclose(found.pathway_RWME[where], expected, atol=1e-5)
        kept += 1
    assert 0 < kept < QUESTIONS, "some are right, some are wrong"
    assert len(found) == kept == found.counts["correct"] and found.counts["asked"] == QUESTIONS
    assert found.pathway_RWME.dtype == torch.float32
    again = found.embed(found.texts, loaded)
    assert torch.allclose(again, found.embedding_RX, atol=1e-4)
    assert found.folder.name.startswith("small-openbookqa-train-")


def test_a_set_is_built_once(config, asked):
    first, _ = build(config)
    assert asked == [QUESTIONS]
    again, _ = build(replace(config, seed=9, limit=1, batch_size=1))
    assert asked == [QUESTIONS] and again.folder == first.folder
    assert again.prompts == first.prompts and again.pathway_RWME.equal(first.pathway_RWME)
    assert again.embedding_RX.equal(first.embedding_RX)


def test_what_determines_a_set_makes_another_one(config, models, tmp_path):
    changes = {
        "none": {},
        "model": {"model": ModelConfig(name="small", path=str(models[1]))},
        "prompt": {"task": replace(config.task, answer="text")},
        "chat": {"task": replace(config.task, chat_template=True), "apply_chat_template": True},
        "sample_seed": {"sample_seed": 3},
        "data": {},
    }
    folders = set()
    for change, keys in changes.items():
        if change == "data":
            changed = [row | {"question_stem": row["question_stem"] + "?"} for row in rows(QUESTIONS)]
            write_jsonl(tmp_path / "data" / "openbookqa" / "train.jsonl", changed)
        found, _ = build(replace(config, **keys), reference_size=10)
        folders.add(found.folder)
        assert found.texts[0].startswith("User: ") is (change == "chat")
    assert len(folders) == len(changes)


def test_a_stored_set_leaves_nothing_to_read(stored):
    found, loaded = build(stored)
    assert references_left(stored, SETTINGS, loaded.facts) == {}
    smaller = SimpleNamespace(**vars(SETTINGS) | {"reference_size": 11})
    [(name, tokens)] = references_left(stored, smaller, loaded.facts).items()
    assert name != found.folder.name and tokens > 11 * min(map(len, found.prompts)), "and the answers"


def test_a_set_with_tokens_that_a_model_lacks_is_refused(stored):
    """Its prompts have small token ids, too."""
    found, loaded = build(stored)
    check_own(found.folder, "last1", loaded, Budget(64))
    loaded.model.resize_token_embeddings(max(found.prompts[0]))
    assert min(found.prompts[0]) < max(found.prompts[0])
    with pytest.raises(ConfigError, match="does not fit: index out of range.* Use a set of this model"):
        check_own(found.folder, "last1", loaded, Budget(64))


@pytest.mark.parametrize("file", ["references.jsonl", "pathways.safetensors", "embeddings-*"])
def test_a_damaged_set_is_one_error(stored, file):
    found, _ = build(stored)
    [path] = found.folder.glob(file)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ConfigError, match="small-openbookqa.*Remove"):
        build(stored)


def test_embeddings_are_kept_of_each_kind(stored, monkeypatch, tmp_path):
    found, _ = build(stored)
    file = tmp_path / "vectors.safetensors"
    write_vectors(found.texts, lambda texts: torch.eye(len(texts)), file)
    other, _ = build(stored, embeddings=str(file))
    assert other.embedding_RX.equal(torch.eye(len(found)))
    monkeypatch.setattr(references, "hidden_states", None)  # computing them again would fail
    again, _ = build(stored)
    assert again.embedding_RX.equal(found.embedding_RX) and again.mean_X.equal(found.mean_X)


def test_too_few_references(stored, tmp_path):
    found, _ = build(stored)
    told = rf"answered {len(found)} of 30 .* correctly, and method.k=31 neighbours"
    with pytest.raises(ConfigError, match=told):
        build(stored, k=31)
    assert len(build(stored, k=31, epsilon=0.5)[0]) == len(found), "a ball needs no k"
    wrong = [row for row in rows(QUESTIONS) if f"{row['question_stem']}\n" not in "".join(found.texts)]
    write_jsonl(tmp_path / "data" / "openbookqa" / "train.jsonl", wrong)
    told = r"answered 0 of \d+ reference questions of openbookqa:train correctly"
    with pytest.raises(ConfigError, match=told):
        build(stored, epsilon=0.5)


def test_a_prompt_for_every_choice_is_refused(config, tmp_path):
    row = {"sentence": "Ann thanked Eve since _ helped.", "option1": "Ann", "option2": "Eve", "answer": "2"}
    write_jsonl(tmp_path / "data" / "winogrande" / "train.jsonl", [row])
    text = replace(config, task=replace(config.task, answer="text"))
    with pytest.raises(ConfigError, match=r"prompt for every choice(.|\n)*task.answer=letters"):
        build(text, reference="winogrande")
