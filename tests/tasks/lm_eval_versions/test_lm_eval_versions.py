"""Breaks if tasks of the installed lm-eval are asked, filtered, scored or logged otherwise
than this package expects."""

from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.models.lm_eval_internals import answers_for_lm_eval
from moe_lab.runs.evaluation.lms import AnsweringLM
from moe_lab.runs.evaluation.run_lm_eval import evaluate_tasks
from moe_lab.tasks import toy
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.lm_eval_versions.documents import (
    evaluated_documents,
    executes_code,
    has_prompt_per_choice,
    number_of_choices,
)
from moe_lab.tasks.lm_eval_versions.metrics import output_filters
from moe_lab.tasks.loading import load_tasks
from tests.support.documents import PROBLEMS, WINOGRANDE
from tests.support.runs import load_task, small_data, write_jsonl


class Numbers(AnsweringLM):
    """Gives each continuation and each text the log-likelihood -2."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def _answer(self, kind: str, requests: list[Any]) -> list[Any]:
        reply = (-2.0, True) if kind == "loglikelihood" else -2.0
        return answers_for_lm_eval(kind, [reply] * len(requests))


@pytest.mark.parametrize(
    ("name", "responses"), [("toy_text", [[-2.0]]), ("toy_cloze", [[(-2.0, True)]])]
)
def test_a_logged_sample_has_the_text_and_what_was_answered(name, responses):
    task = load_task(None, name)
    evaluated = evaluate_tasks(
        Config(), {"tasks": {name: task}, "groups": {}, "group_map": {}}, Numbers(), {name: [3]}
    )
    [sample] = evaluated.samples[name]
    document = evaluated_documents(task)[3]
    assert sample["doc_id"] == 3
    assert sample["doc"] == document
    assert sample["target"] == document["text" if name == "toy_text" else "word"]
    expected_arguments = (
        (document["text"],) if name == "toy_text" else (document["context"], document["word"])
    )
    assert [tuple(arguments) for arguments in sample["arguments"]] == [expected_arguments]
    assert sample["resps"] == responses
    assert sample["filtered_resps"] == responses[0]


def test_each_choice_of_winogrande_has_a_prompt(tmp_path):
    write_jsonl(tmp_path / "winogrande" / "validation.jsonl", [WINOGRANDE])
    task = load_task(tmp_path, "winogrande", num_fewshot=0)
    task.build_all_requests()
    [document] = evaluated_documents(task)
    assert has_prompt_per_choice(task)
    assert number_of_choices(task, document) == len(task.instances) == 2
    right = task.instances[gold_choice(task, document)].args[0]
    assert right.endswith(document[f"option{document['answer']}"])
    letters = load_task(tmp_path, "winogrande", num_fewshot=0, answer="letters")
    assert not has_prompt_per_choice(letters)


def test_tasks_of_a_group_have_their_own_names(tmp_path, small_index):
    (tmp_path / "both.yaml").write_text("group: both\ntask: [toy_choice, toy_cloze]\n")
    for name in ("toy_choice", "toy_cloze"):
        copy(Path(toy.__file__).parent / f"{name}.yaml", tmp_path)
    tasks = load_tasks(Config(task=TaskConfig(name="both", include_path=str(tmp_path))))
    assert list(tasks["tasks"]) == ["toy_choice", "toy_cloze"]
    assert tasks["groups"]["both"].child_names == ["toy_choice", "toy_cloze"]


def test_without_metrics_a_task_keeps_its_filters_unless_they_execute_code(tmp_path):
    plain = load_task(small_data(tmp_path), "gsm8k", num_fewshot=0, predict_only=True)
    assert [task_filter.name for task_filter in output_filters(plain)] == [
        "strict-match",
        "flexible-extract",
    ]
    write_jsonl(tmp_path / "humaneval" / "test.jsonl", PROBLEMS)
    code = load_task(tmp_path, "humaneval", predict_only=True)
    assert executes_code(code)
    assert [task_filter.name for task_filter in output_filters(code)] == ["none"]
    for task in (plain, code):
        assert list(task.aggregation()) == ["bypass"]


def test_a_split_of_examples_that_only_fewshot_config_names_is_obeyed(tmp_path):
    yaml = """\
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/test.jsonl, other: FOLDER/other.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
fewshot_config: {split: other}
metric_list: [{metric: exact_match}]
"""
    (tmp_path / "sums.yaml").write_text(yaml.replace("FOLDER", str(tmp_path)))
    for split in ("test", "other"):
        rows = [{"question": f"{split} {number}?", "answer": "x"} for number in range(3)]
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    task = load_task(None, "sums", include_path=str(tmp_path), num_fewshot=2)
    task.build_all_requests()
    for instance in task.instances:
        assert instance.args[0].count("other") == 2
        assert instance.args[0].count("test") == 1
