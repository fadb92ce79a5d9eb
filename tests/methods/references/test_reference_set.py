"""Which documents references come from, and the sets that are built of them.

Broken by: a test document among them, another split or size than Table 7's, a choice that moves
with limit=, a missing file or split without a message and a remedy; a reference that the model
got wrong, a pathway or token of another question, a set that is built twice, a set of another
model or prompt that is used.
"""

import json
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
from moe_lab.methods.references.documents import (
    TABLE_7,
    Source,
    reference_documents,
    reference_sources,
)
from moe_lab.methods.references.reference_set import load_or_build, references_left
from moe_lab.methods.references.store import check_own
from moe_lab.models.load import load_model
from moe_lab.routing import record
from tests.support.documents import COPA, KNOWREF, OPENBOOKQA, SCIQ, WINOGRANDE, write_vectors
from tests.support.models import load_folder, make_model, save_model
from tests.support.runs import choices, write_jsonl
from tests.support.tokenizers import SIZE, tokenizer_of


def settings(reference: Any = None, size: int | None = None) -> Any:
    return SimpleNamespace(reference=reference, reference_size=size)


def evaluating(data: Any, task: str, **keys: Any) -> Config:
    return Config(task=TaskConfig(name=task, answer="letters"), data_dir=data and str(data), **keys)


def numbered(row: dict, column: str, count: int) -> list[dict]:
    return [row | {column: f"{row[column]} ({i})"} for i in range(count)]


@pytest.fixture
def data(tmp_path):
    """Some of Table 7's tasks, each with the splits that data_dir usually has."""
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(9))
    # two of them are test documents
    write_jsonl(tmp_path / "arc_easy" / "train.jsonl", choices(6, start=7))
    write_jsonl(tmp_path / "winogrande" / "validation.jsonl", [WINOGRANDE])
    write_jsonl(tmp_path / "openbookqa" / "train.jsonl", numbered(OPENBOOKQA, "question_stem", 8))
    write_jsonl(tmp_path / "openbookqa" / "test.jsonl", numbered(OPENBOOKQA, "question_stem", 3))
    write_jsonl(tmp_path / "sciq" / "validation.jsonl", numbered(SCIQ, "question", 5))
    write_jsonl(tmp_path / "knowref" / "test.jsonl", numbered(KNOWREF, "sentence", 4))
    return tmp_path


def sizes(documents) -> dict[str, int]:
    return {name: len(numbers) for name, numbers in documents.samples.items()}


@pytest.mark.slow
def test_table_7_takes_train_splits_where_there_are_some(data):
    documents = reference_documents(evaluating(data, "arc_easy"), settings())
    assert documents.label == "Table 7"
    assert sizes(documents) == {"openbookqa:train": 8, "sciq:validation": 5}
    book, sciq = documents.sources
    assert (book["wanted"], book["documents"], book["asked"]) == (2000, 8, 8)
    assert (sciq["wanted"], sciq["documents"], sciq["asked"]) == (2000, 5, 5)
    assert sizes(reference_documents(evaluating(data, "winogrande"), settings())) == {
        "knowref:test": 4
    }


def test_table_7_is_the_papers():
    sizes_by_task = {}
    for task, sources in TABLE_7.items():
        sizes_by_task[task] = {source.title: source.size for source in sources}
    assert sizes_by_task == {
        "hellaswag": {"CommonsenseQA": 6000, "Social-IQA": 6000},
        "piqa": {"CommonsenseQA": 6000, "Social-IQA": 6000},
        "arc_challenge": {"OpenBookQA": 2000, "SciQ": 2000},
        "arc_easy": {"OpenBookQA": 2000, "SciQ": 2000},
        "mmlu": {"BIG-bench": 8000, "SuperGLUE": 8000},
        "winogrande": {"KnowRef": 2000},
    }


def test_a_size_takes_the_first_of_one_permutation(data):
    def chosen(size: int, **keys: Any) -> set[tuple[str, int]]:
        documents = reference_documents(evaluating(data, "arc_easy", **keys), settings(size=size))
        return {(name, number) for name, numbers in documents.samples.items() for number in numbers}

    small = chosen(2)
    large = chosen(4)
    assert len(small) == 4, "of each source"
    assert len(large) == 8, "of each source"
    assert small < large, "of each source"
    assert chosen(2, limit=1, seed=5, fewshot_seed=3, num_fewshot=2) == small
    assert chosen(2, sample_seed=1) != small


def test_a_test_document_is_no_reference(data):
    documents = reference_documents(evaluating(data, "arc_easy"), settings("arc_easy"))
    assert documents.label == "method.reference"
    (source,) = documents.sources
    assert (source["documents"], source["dropped"], source["asked"]) == (6, 2, 4)
    ids = [
        documents.tasks["arc_easy:train"].task_docs[i]["id"]
        for i in documents.samples["arc_easy:train"]
    ]
    assert ids == ["q9", "q10", "q11", "q12"]
    limited = reference_documents(evaluating(data, "arc_easy", limit=1), settings("arc_easy"))
    assert sizes(limited) == sizes(documents)


def test_what_has_no_references_is_refused_with_the_way_out(data):
    with pytest.raises(ConfigError, match="All documents of arc_easy:test are evaluated"):
        reference_documents(evaluating(data, "arc_easy"), settings("arc_easy:test"))
    with pytest.raises(
        ConfigError, match="toy_text.* neither choices nor texts that are right or wrong"
    ):
        reference_documents(Config(task=TaskConfig(name="toy_choice")), settings("toy_text"))
    message = r"come from openbookqa:dev. Task openbookqa has no dev split in .*/openbookqa"
    with pytest.raises(ConfigError, match=message):
        reference_documents(evaluating(data, "arc_easy"), settings("openbookqa:dev"))
    write_jsonl(data / "sciq" / "test.jsonl", [SCIQ])
    with pytest.raises(ConfigError, match=r"sciq has no training split(.|\n)*method.reference="):
        reference_documents(evaluating(data, "sciq"), settings())


def test_another_task_uses_its_own_train_split(data):
    documents = reference_documents(evaluating(data, "openbookqa"), settings())
    assert documents.label == "own train split"
    assert documents.sources[0]["dropped"] == 3
    assert sizes(documents) == {"openbookqa:train": 5}


def test_a_split_can_be_named(data):
    splits = settings(["arc_easy:test", "openbookqa:test", "openbookqa:train"])
    documents = reference_documents(evaluating(data, "arc_easy"), splits)
    assert sizes(documents) == {"arc_easy:test": 0, "openbookqa:test": 3, "openbookqa:train": 8}


def test_the_toy_worlds_near_and_far_sets():
    toy = Config(task=TaskConfig(name="toy_choice"))
    near = reference_documents(toy, settings())
    far = reference_documents(toy, settings("toy_choice:far"))
    assert sizes(near) == {"toy_choice:near": 400}
    assert sizes(far) == {"toy_choice:far": 100}
    with pytest.raises(ConfigError, match="toy_choice cannot be loaded: KeyError: 'bad'"):
        reference_documents(toy, settings("toy_choice:bad"))


@pytest.mark.parametrize(("task", "rule_source"), [("toy_rules", "plus"), ("toy_rules_max", "max")])
def test_rules_have_references_of_their_meaning_and_on_request_of_the_other(task, rule_source):
    rules = Config(task=TaskConfig(name=task))
    assert sizes(reference_documents(rules, settings())) == {f"toy_rules:{rule_source}": 200}
    for meaning in ("plus", "max"):
        documents = reference_documents(rules, settings(f"toy_rules:{meaning}"))
        assert sizes(documents) == {f"toy_rules:{meaning}": 200}
        assert documents.dropped == 0


def test_a_source_has_local_files_and_otherwise_the_hub(data, monkeypatch):
    """No part of a source is left out.

    Fails where the hub is not asked for a part that data_dir lacks.
    """
    source = Source("some", ("copa", "boolq"), 1)
    monkeypatch.setitem(TABLE_7, "arc_easy", (source,))
    write_jsonl(data / "super_glue" / "copa" / "train.jsonl", [COPA])
    with pytest.raises(
        ConfigError, match=r"aps/super_glue(.|\n)*super_glue/boolq(.|\n)*method.reference="
    ):
        reference_documents(evaluating(data, "arc_easy"), settings())
    monkeypatch.setitem(
        TABLE_7, "arc_easy", (replace(source, tasks=("copa",), hub_tasks=("boolq",)),)
    )
    documents = reference_documents(evaluating(data, "arc_easy"), settings())
    assert list(documents.tasks) == ["copa:train"]
    assert documents.sources[0]["data"] == [f"files in {data / 'super_glue' / 'copa'}"]


def test_generated_answers_are_right_by_the_tasks_headline_metric(data):
    documents = reference_documents(Config(task=TaskConfig(name="toy_math")), settings(size=7))
    assert documents.label == "own train split"
    assert documents.metrics == {"toy_math:train": "exact_match,none"}
    assert sizes(documents) == {"toy_math:train": 7}
    write_jsonl(data / "gsm8k" / "train.jsonl", [{"question": "1 + 1?", "answer": "#### 2"}])
    gsm8k = reference_documents(evaluating(data, "arc_easy"), settings("gsm8k"))
    assert gsm8k.metrics == {"gsm8k:train": "exact_match,strict-match"}


def test_several_evaluated_tasks_share_their_sources():
    label, sources = reference_sources(["arc_easy", "arc_challenge", "openbookqa"], None)
    assert label == "Table 7, own train split"
    assert [source.title for source in sources] == ["OpenBookQA", "SciQ", "openbookqa, train"]
    assert reference_sources("mmlu_anatomy", None) == reference_sources("mmlu", None)
    assert reference_sources("x", "y") == ("method.reference", [Source("y", ("y",))])
    with pytest.raises(ConfigError, match="names no task"):
        reference_sources("x", [])


SETTINGS = SimpleNamespace(
    tokens="last1", reference="openbookqa", reference_size=None, embeddings=None, k=1, epsilon=None
)
QUESTIONS = 30


def rows(count: int) -> list[dict[str, Any]]:
    questions = [
        {"question_stem": f"Number {i} is", "answerKey": "ABCD"[i % 4]} for i in range(count)
    ]
    return [OPENBOOKQA | question for question in questions]


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
    model = ModelConfig(name="small", path=str(models[0]))
    place = {"offline": True, "device": "cpu"}
    return evaluating(
        tmp_path / "data", "arc_easy", model=model, output_dir=str(tmp_path / "out"), **place
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


def lettered_prompt(row: dict[str, Any]) -> str:
    lines = [row["question_stem"]]
    for letter, choice in zip("ABCD", row["choices"]["text"], strict=True):
        lines.append(f"{letter}. {choice}")
    return "\n".join([*lines, "Answer:"])


def test_references_are_what_the_untouched_model_answers_correctly(config):
    reference_set, loaded = build(config)
    model = loaded.model
    tokenizer = loaded.tokenizer
    letters = [tokenizer(f" {letter}").input_ids for letter in "ABCD"]
    kept_count = 0
    for i, row in enumerate(rows(QUESTIONS)):
        text = lettered_prompt(row)
        ids = tokenizer(text).input_ids
        totals = []
        with torch.no_grad(), record(model) as routes:
            for letter in letters:
                logits = model(torch.tensor([ids + letter])).logits[0, len(ids) - 1 :]
                scores = logits.log_softmax(-1)
                totals.append(sum(float(scores[j, token]) for j, token in enumerate(letter)))
        if totals.index(max(totals)) != i % 4:
            assert text not in reference_set.texts
            continue
        place = reference_set.texts.index(text)
        assert reference_set.prompts[place] == ids
        assert reference_set.golds[place] == letters[i % 4]
        assert reference_set.golds[place][0] == letters[i % 4][0]
        expected = torch.stack([logits[len(ids) - 1].softmax(-1) for logits in routes.logits])
        assert torch.allclose(reference_set.pathway_RWME[place], expected, atol=1e-5)
        kept_count += 1
    assert 0 < kept_count < QUESTIONS, "some are right, some are wrong"
    assert len(reference_set) == kept_count == reference_set.counts["correct"]
    assert reference_set.counts["asked"] == QUESTIONS
    assert reference_set.pathway_RWME.dtype == torch.float32
    second_vectors = reference_set.embed(reference_set.texts, loaded)
    assert torch.allclose(second_vectors, reference_set.embedding_RX, atol=1e-4)
    assert reference_set.folder.name.startswith("small-openbookqa-train-")


def test_a_set_is_built_once(config, monkeypatch):
    first, _ = build(config)
    monkeypatch.setattr(reference_files, "answered", None)  # asking the model again would fail
    second_set, _ = build(replace(config, seed=9, limit=1, batch_size=1))
    assert second_set.folder == first.folder
    assert second_set.prompts == first.prompts
    assert second_set.pathway_RWME.equal(first.pathway_RWME)
    assert second_set.embedding_RX.equal(first.embedding_RX)


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
            changed = [
                row | {"question_stem": row["question_stem"] + "?"} for row in rows(QUESTIONS)
            ]
            write_jsonl(tmp_path / "data" / "openbookqa" / "train.jsonl", changed)
        reference_set, _ = build(replace(config, **keys), reference_size=10)
        folders.add(reference_set.folder)
        assert reference_set.texts[0].startswith("User: ") is (change == "chat")
    assert len(folders) == len(changes)


def test_a_stored_set_leaves_nothing_to_read(stored):
    reference_set, loaded = build(stored)
    assert references_left(stored, SETTINGS, loaded.facts) == {}
    smaller = SimpleNamespace(**vars(SETTINGS) | {"reference_size": 11})
    [(name, tokens)] = references_left(stored, smaller, loaded.facts).items()
    assert name != reference_set.folder.name, "and the answers"
    assert tokens > 11 * min(map(len, reference_set.prompts)), "and the answers"


def test_a_set_with_tokens_that_a_model_lacks_is_refused(stored):
    """Its prompts have small token ids, too."""
    reference_set, loaded = build(stored)
    check_own(reference_set.folder, "last1", loaded, Budget(64))
    loaded.model.resize_token_embeddings(max(reference_set.prompts[0]))
    assert min(reference_set.prompts[0]) < max(reference_set.prompts[0])
    with pytest.raises(
        ConfigError, match="does not fit: index out of range.* Use a set of this model"
    ):
        check_own(reference_set.folder, "last1", loaded, Budget(64))


@pytest.mark.parametrize("file", ["references.jsonl", "pathways.safetensors", "embeddings-*"])
def test_a_damaged_set_is_one_error(stored, file):
    reference_set, _ = build(stored)
    [path] = reference_set.folder.glob(file)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ConfigError, match="small-openbookqa.*Remove"):
        build(stored)


def test_embeddings_are_kept_of_each_kind(stored, monkeypatch, tmp_path):
    first_set, _ = build(stored)
    file = tmp_path / "vectors.safetensors"
    write_vectors(first_set.texts, lambda texts: torch.eye(len(texts)), file)
    file_set, _ = build(stored, embeddings=str(file))
    assert file_set.embedding_RX.equal(torch.eye(len(first_set)))
    monkeypatch.setattr(references, "hidden_states", None)  # computing them again would fail
    second_set, _ = build(stored)
    assert second_set.embedding_RX.equal(first_set.embedding_RX)
    assert second_set.mean_X.equal(first_set.mean_X)


def test_too_few_references(stored, tmp_path):
    reference_set, _ = build(stored)
    message = rf"answered {len(reference_set)} of 30 .* correctly, and method.k=31 neighbours"
    with pytest.raises(ConfigError, match=message):
        build(stored, k=31)
    assert len(build(stored, k=31, epsilon=0.5)[0]) == len(reference_set), "a ball needs no k"
    wrong = [
        row
        for row in rows(QUESTIONS)
        if f"{row['question_stem']}\n" not in "".join(reference_set.texts)
    ]
    write_jsonl(tmp_path / "data" / "openbookqa" / "train.jsonl", wrong)
    message = r"answered 0 of \d+ reference questions of openbookqa:train correctly"
    with pytest.raises(ConfigError, match=message):
        build(stored, epsilon=0.5)


def test_a_prompt_for_every_choice_is_refused(config, tmp_path):
    write_jsonl(tmp_path / "data" / "winogrande" / "train.jsonl", [WINOGRANDE])
    text = replace(config, task=replace(config.task, answer="text"))
    with pytest.raises(ConfigError, match=r"prompt for every choice(.|\n)*task.answer=letters"):
        build(text, reference="winogrande")


def test_generated_references_keep_the_tokens_that_the_model_wrote(tmp_path):
    """Their texts, encoded again, are other tokens, which the model finds unlikely."""
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 2)
    model = make_model("olmoe", vocab_size=SIZE, **ends)
    save_model(model, tmp_path / "model", tokenizer_of("SentencePiece BPE, blank in front"))
    loaded = load_folder(tmp_path / "model", "float32", "cpu")
    config = Config(
        model=ModelConfig(name="small", path=str(tmp_path / "model")),
        task=TaskConfig(name="toy_math"),
        output_dir=str(tmp_path / "outputs"),
        device="cpu",
        dtype="float32",
    )
    documents = reference_documents(config, settings(size=3))
    lm = EngineLM(loaded.model, loaded.tokenizer, progress=False)
    tmp_path.joinpath("set").mkdir()
    reference_files.build(tmp_path / "set", config, "last1", documents, loaded, lm)
    lines = [
        json.loads(line)
        for line in (tmp_path / "set" / "references.jsonl").read_text().splitlines()
    ]
    assert lines  # some answers are empty
    for line in lines:
        prompt = torch.tensor([line["prompt_ids"]])
        count = len(line["answer_ids"])
        expected = loaded.model.generate(
            prompt, max_new_tokens=count, do_sample=False, eos_token_id=None
        )
        assert expected[0, prompt.shape[1] :].tolist() == line["answer_ids"]


@pytest.mark.parametrize(("task", "numerics"), [("toy_math", 4), ("toy_choice", 3)])
def test_sets_of_generated_answers_from_before_are_other_sets(task, numerics):
    documents = reference_documents(
        Config(task=TaskConfig(name=task, answer="letters")), settings(size=3)
    )
    assert references._numerics(documents) == numerics
