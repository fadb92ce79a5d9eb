"""Models that reason before they answer (`model.think_end_token`).

Broken by: choices that are scored before the final channel, a reply whose reasoning is graded,
a reply that is cut by a task's own number of tokens, a run without a chat template
or of another model that changes.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.config.schema import Config, ModelConfig, TaskConfig
from moe_lab.engine.hf import THINK_END
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.references.documents import reference_documents
from moe_lab.models.tokenizer import Framing
from moe_lab.results.marks import marks_of
from moe_lab.results.reading import read_run
from moe_lab.results.samples import read_samples
from moe_lab.runs.prepare import prepare
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.requests import build_requests, right_request
from tests.support.command import run_command
from tests.support.harmony import FINAL, OPEN, answer_with, harmony_tokenizer, reply, save_harmony
from tests.support.runs import small_data, write_jsonl

PRESET: dict[str, Any] = {"think_end_token": FINAL, "max_gen_toks": 2048}
WINOGRANDE = {
    "option1": "Ann",
    "option2": "Eve",
    "answer": "2",
    "sentence": "Ann thanked Eve since _ left.",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_harmony(tmp_path_factory.mktemp("gpt-oss"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_data(tmp_path_factory.mktemp("data"))
    write_jsonl(folder / "winogrande" / "validation.jsonl", [WINOGRANDE])
    return folder


def config(
    model: Path, data: Path, task: str = "gsm8k", preset: Any = PRESET, **keys: Any
) -> Config:
    keys = {"num_fewshot": 1, "apply_chat_template": True, **keys}
    model_config = ModelConfig(name="gpt-oss", path=str(model), **preset)
    places = {"data_dir": str(data), "output_dir": str(data / "outputs"), "offline": True}
    return Config(
        model=model_config,
        method=get_method("base").Config(),
        task=TaskConfig(name=task),
        **places,
        **keys,
    )


def asked(run_config: Config) -> tuple[Any, list[list[Any]]]:
    """The task and the requests of its documents."""
    task = load_tasks(run_config)["tasks"][run_config.task.name]
    framing = Framing(harmony_tokenizer, run_config.apply_chat_template)
    return task, build_requests(run_config, task, framing)


@pytest.mark.parametrize("task", ["arc_easy", "winogrande"])
def test_choices_stand_after_the_header_of_the_final_channel(model, data, task):
    _, documents = asked(config(model, data, task, num_fewshot=0))
    _, without = asked(config(model, data, task, {}, num_fewshot=0))
    for with_header, plain in zip(documents, without, strict=True):
        for instance, before in zip(with_header, plain, strict=True):
            assert instance.args == (before.args[0] + FINAL, before.args[1])
            assert before.args[0].endswith(OPEN)


def test_a_worked_answer_is_scored_in_the_final_channel(model, data):
    run_config = config(model, data)
    task, documents = asked(run_config)
    prompt, answer = right_request(run_config, task, documents[0])
    assert prompt.endswith(f"<|end|>{OPEN}{FINAL}")
    assert answer.endswith("#### 2")
    assert documents[0][0].args[0].endswith(f"<|end|>{OPEN}"), (
        "a generated reply begins with its reasoning"
    )


def test_a_reply_may_have_as_many_tokens_as_the_model_and_the_task_need(model, data):
    def settings(**keys: Any) -> dict[str, Any]:
        task = load_tasks(config(model, data, **keys))["tasks"]["gsm8k"]
        return task.get_config("generation_kwargs")

    of_preset = settings()
    assert of_preset["max_gen_toks"] == 2048
    assert of_preset[THINK_END] == FINAL

    of_user = settings(gen_kwargs={"max_new_tokens": 300})
    assert of_user["max_new_tokens"] == 300
    assert "max_gen_toks" not in of_user

    of_small_preset = settings(preset={**PRESET, "max_gen_toks": 64})
    assert of_small_preset["max_gen_toks"] == 256, "lm-eval's own number"

    for plain in (settings(apply_chat_template=False), settings(preset={})):
        assert THINK_END not in plain
        assert "max_gen_toks" not in plain


def test_an_answer_that_the_task_begins_has_no_reasoning(model, tmp_path):
    text = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
    }
    write_jsonl(tmp_path / "rows.jsonl", [{"question": "2 + 2?", "answer": "4"}])
    yaml = text | {"task": "begun", "test_split": "test", "output_type": "generate_until"}
    yaml |= {"doc_to_text": "question", "doc_to_target": "answer", "gen_prefix": "It is"}
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "begun.yaml").write_text(json.dumps(yaml))
    run_config = config(model, tmp_path, "begun", num_fewshot=0)
    run_config.task.include_path = str(tmp_path / "tasks")
    _, [[instance]] = asked(run_config)
    prompt, settings = instance.args
    assert prompt.endswith(f"{OPEN}{FINAL}It is")
    assert THINK_END not in settings


def run_id(run_config: Config) -> str:
    return prepare(replace(run_config, baseline=False)).run_id


@pytest.mark.parametrize("task", ["gsm8k", "arc_easy"])
def test_it_is_part_of_a_runs_identity_with_a_chat_template_alone(model, data, task):
    plain = config(model, data, task, {}, apply_chat_template=False)
    assert run_id(config(model, data, task, apply_chat_template=False)) == run_id(plain)
    presets = ({}, PRESET, {**PRESET, "think_end_token": "</think>"})
    ids = {run_id(config(model, data, task, preset)) for preset in presets}
    assert len(ids) == 3
    with pytest.raises(
        ConfigError, match="max_gen_toks=2048 has no effect without model.think_end_token"
    ):
        config(model, data, task, {"max_gen_toks": 2048})


def test_answers_after_reasoning_are_no_references_of_c3po(model, data):
    settings: Any = SimpleNamespace(reference=["gsm8k"], reference_size=None)
    with pytest.raises(
        ConfigError, match="gsm8k:train cannot be a reference of C3PO: the model reasons"
    ):
        reference_documents(config(model, data), settings)
    assert reference_documents(config(model, data, preset={}), settings).samples


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "new_tokens"),
    [(True, 2048), (False, 20)],
    ids=["whole reply", "cut in the reasoning"],
)
def test_the_final_channel_is_graded(model, data, tmp_path, capsys, monkeypatch, right, new_tokens):
    """Document 0 asks for 0 + 2.

    lm-eval's `strict-match` would find the reasoning's `#### 3` first.
    """
    answer_with(monkeypatch, reply("Question: 0 + 2?\n#### 3\n\nQuestion: no", "It is\n#### 2"))
    ended = run_command(
        capsys,
        "method=roe",
        "method.n=2",
        "method.temperature=0.5",
        "model=gpt-oss",
        f"model.path={model}",
        "task=gsm8k",
        f"data_dir={data}",
        "num_fewshot=1",
        "samples=[0]",
        "apply_chat_template=true",
        "device=cpu",
        f"gen_kwargs=max_gen_toks={new_tokens}",
        f"output_dir={tmp_path}",
    )
    assert ended.code == 0, ended.err
    result = read_run(ended.folders[-1])
    assert result is not None
    sample = read_samples(result)["gsm8k"][0]
    scores = result["results"]["gsm8k"]
    assert (scores["exact_match,strict-match"], scores["exact_match,flexible-extract"]) == (
        right,
        right,
    )
    assert sample.responses == [["It is\n#### 2" if right else ""]]
    assert result.cost.cut_reasoning == (not right)
    assert ("cut-reasoning" in marks_of(result)) == (not right)
