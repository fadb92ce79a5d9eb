"""`method.dataset=reference`: fine-tuning on C3PO's reference questions.

Broken by: rows that are not what lm-eval scores, a loss on the prompt, a test question that is
trained on, another reference set than C3PO's, a chat template around prompts that the run asks
without one.
"""

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.base import base_lm
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.reference_rows import prepare_references
from moe_lab.methods.references.documents import reference_documents
from moe_lab.methods.references.questions import reference_questions
from moe_lab.methods.tokenized import NO_LOSS
from moe_lab.models.load import load_model
from moe_lab.tasks.document_hashes import document_hashes
from moe_lab.tasks.loading import load_tasks


def config_of(**keys) -> Config:
    settings = {"dataset": "reference", "reference_size": 12, "validation_size": 0} | keys
    task = TaskConfig(name="toy_choice", answer="letters")
    return Config(method=FinetuneConfig(**settings), task=task, device="cpu")


@pytest.fixture(scope="module")
def loaded():
    config = config_of()
    return load_model(config.model, dtype="float32", device="cpu", offline=True)


def test_rows_are_the_prompts_and_right_answers_that_lm_eval_scores(loaded):
    config = config_of()
    prepared = prepare_references(config, config.method, loaded.facts)
    lm = base_lm(loaded, config)
    questions = reference_questions(config, reference_documents(config, config.method))
    assert len(prepared.train.rows) == len(questions) == 12
    for row, question in zip(prepared.train.rows, questions, strict=True):
        prompt_ids, answer_ids = lm.encode_pair(question.prompt, question.right_answer)
        assert row.ids == [*prompt_ids, *answer_ids]
        assert row.labels == [NO_LOSS] * len(prompt_ids) + list(answer_ids)
        assert loaded.tokenizer.decode(row.ids).endswith(question.right_answer)
    assert prepared.end is None
    assert prepared.notes == []


def test_the_questions_are_those_of_c3po_and_none_of_the_test(loaded):
    config = config_of(reference_size=None)
    c3po = C3POConfig(name="c3po")
    documents = reference_documents(config, c3po)
    ours = reference_documents(config, config.method)
    assert (ours.label, ours.samples) == (documents.label, documents.samples)
    tested = set()
    for task in load_tasks(config)["tasks"].values():
        tested.update(*document_hashes(task))
    for key, task in documents.tasks.items():
        hashes = document_hashes(task)
        for number in documents.samples[key]:
            assert not set(hashes[number]) & tested


def test_the_last_questions_are_held_out(loaded):
    whole = config_of()
    parts = config_of(validation_size=4)
    all_rows = prepare_references(whole, whole.method, loaded.facts).train.rows
    prepared = prepare_references(parts, parts.method, loaded.facts)
    assert prepared.validation is not None
    assert [*prepared.train.rows, *prepared.validation.rows] == all_rows
    assert len(prepared.validation.rows) == 4
    with pytest.raises(ConfigError, match="holds out all reference questions"):
        nothing = config_of(validation_size=12)
        prepare_references(nothing, nothing.method, loaded.facts)


def test_other_questions_are_another_training(loaded):
    digests = set()
    for keys in ({}, {"reference_size": 11}, {"validation_size": 1}, {"dataset_size": 6}):
        config = config_of(**keys)
        digests.add(prepare_references(config, config.method, loaded.facts).data.digest)
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dataset": "toy", "reference": "piqa"}, "method.reference has no effect without"),
        ({"dataset": "toy", "reference_size": 3}, "method.reference_size has no effect without"),
        ({"partners": 2}, "Give method.profile="),
    ],
)
def test_keys_without_an_effect_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        config_of(**({"reference_size": None} | keys))
