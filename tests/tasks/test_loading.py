"""Breaks if a documented task needs all of lm-eval to be read, or if a setting
is not what the user gave."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from moe_lab.errors import ConfigError, TaskError
from moe_lab.tasks import factory, task_index
from moe_lab.tasks.loading import task_cache
from tests.support.documents import PROBLEMS
from tests.support.runs import load_task, small_data, write_jsonl


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return small_data(tmp_path / "data")


def prompts(task: Any) -> list[str]:
    task.build_all_requests()
    return [instance.args[0] for instance in task.instances]


def test_documented_tasks_do_not_index_lm_eval(data, monkeypatch):
    monkeypatch.setattr(task_index, "_full_index", lambda path: pytest.fail("indexed"))
    for name in ("gsm8k", "arc_easy", "addsub"):
        load_task(data, name, num_fewshot=1)


def test_chosen_documents_are_lm_evals_and_no_others_are_read(data, monkeypatch):
    """lm-eval reads the whole split, once for the requests and once for the scores."""
    task = load_task(data, "gsm8k", num_fewshot=0)
    for samples in ([0, 2], {1}, None):
        expected = [document for _, document in type(task).doc_iterator(task, samples=samples)]
        assert list(task.doc_iterator(samples=samples)) == list(enumerate(expected)), samples
    read: list[Any] = []
    iterate = Dataset.__iter__

    def note_rows(rows: Dataset) -> Iterator[Any]:
        for row in iterate(rows):
            read.append(row)
            yield row

    monkeypatch.setattr(Dataset, "__iter__", note_rows)
    task.build_all_requests(samples={1})
    assert len(read) == len(task.instances) == 1


def test_given_shots_win_and_the_tasks_own_stand_otherwise(data):
    assert load_task(data, "addsub").get_config("num_fewshot") == 0
    assert load_task(data, "addsub", num_fewshot=3).get_config("num_fewshot") == 3, (
        "lm-eval would keep 0"
    )
    assert load_task(data, "arc_easy").get_config("num_fewshot") == 0
    with pytest.raises(TaskError, match="num_fewshot=5 is more than the 4 examples that gsm8k has"):
        load_task(data, "gsm8k")


def test_the_fewshot_seed_alone_chooses_examples(data):
    def asked(**seeds: int) -> Any:
        return prompts(load_task(data, "arc_easy", num_fewshot=2, **seeds))

    assert asked(fewshot_seed=1) == asked(fewshot_seed=1) != asked(fewshot_seed=2)
    assert asked(fewshot_seed=1, seed=5, sample_seed=9) == asked(fewshot_seed=1)


def test_an_own_test_split_never_shows_the_question_it_asks(data):
    task = load_task(data, "addsub", num_fewshot=4)
    for document, prompt in zip(task.task_docs, prompts(task), strict=True):
        assert prompt.count(document["question"]) == 1


def test_fewshot_split_is_obeyed(data):
    rows = [{"question": f"extra {i}", "answer": "#### 1"} for i in range(5)]
    write_jsonl(data / "gsm8k" / "extra.jsonl", rows)
    assert "extra" in prompts(load_task(data, "gsm8k", fewshot_split="extra", num_fewshot=5))[0]
    with pytest.raises(TaskError, match=r"gsm8k/absent\.jsonl is missing"):
        load_task(data, "gsm8k", fewshot_split="absent", num_fewshot=2)
    with pytest.raises(TaskError, match="toy_math cannot be loaded: KeyError: 'bla'"):
        load_task(None, "toy_math", fewshot_split="bla")


def test_a_grid_has_both_forms_of_a_task(tmp_path):
    write_jsonl(tmp_path / "humaneval" / "test.jsonl", PROBLEMS)
    with task_cache():
        chat = load_task(tmp_path, "humaneval", apply_chat_template=True)
        plain = load_task(tmp_path, "humaneval", apply_chat_template=False)
    assert chat.config.gen_prefix
    assert not plain.config.gen_prefix


def test_data_that_are_missing_are_looked_up_once(tmp_path, monkeypatch):
    lookups: list[tuple] = []
    build = factory.build_tasks

    def counted(*arguments: Any) -> Any:
        lookups.append(arguments)
        return build(*arguments)

    monkeypatch.setattr(factory, "build_tasks", counted)
    with task_cache():
        for _ in range(3):
            with pytest.raises(TaskError, match="svamp"):
                load_task(tmp_path, "svamp")
    assert len(lookups) == 1


@pytest.mark.parametrize("what", ["gen_toks", "new_tokens", "tokens", "completion_tokens"])
def test_one_spelling_of_the_number_of_new_tokens_replaces_the_tasks_own(data, what):
    """lm-eval takes the first of its own order, whoever gave it."""
    from lm_eval.models.utils import normalize_gen_kwargs

    task = load_task(data, "addsub", gen_kwargs={f"max_{what}": 4})
    task.build_all_requests()
    assert normalize_gen_kwargs(task.instances[0].args[1])["max_gen_toks"] == 4
    assert "Question:" in task.get_config("generation_kwargs")["until"], (
        "the task's other settings stay"
    )


@pytest.mark.parametrize(
    ("temperature_given", "sampled", "temperature"),
    [
        ({"temperature": 0.7}, True, 0.7),
        ({"top_p": 0.9}, True, None),
        ({"top_k": 5}, True, None),
        ({"min_p": 0.1}, True, None),
        ({"do_sample": True}, True, None),
        ({"temperature": 0}, False, 0),
        ({"top_p": 0.9, "do_sample": False}, False, 0.0),
        ({"max_gen_toks": 4}, False, 0.0),
    ],
)
def test_sampling_is_on_where_it_is_asked_for(data, temperature_given, sampled, temperature):
    """addsub says `do_sample: false` and `temperature: 0.0`.

    Nothing can be sampled at temperature 0.
    """
    settings = load_task(data, "addsub", gen_kwargs=temperature_given).get_config(
        "generation_kwargs"
    )
    assert settings["do_sample"] is sampled
    assert settings.get("temperature") == temperature


def test_sampling_at_temperature_0_is_refused(data):
    with pytest.raises(ConfigError, match="temperature=0 is greedy"):
        load_task(data, "addsub", gen_kwargs={"temperature": 0.0, "do_sample": True})


def test_predict_only_computes_no_metric(data):
    assert list(load_task(data, "addsub", predict_only=True).aggregation()) == ["bypass"]


OWN = """
task: mine
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: [a, b]
doc_to_target: 0
dataset_path: nobody/nothing
"""
ACCURACY = "metric_list: [{metric: acc}]\n"


@pytest.fixture
def load_mine(data: Path, tmp_path: Path, small_index: None) -> Callable[..., Any]:
    """Loads the task `mine` from a user's folder, without the index of lm-eval's tasks."""
    write_jsonl(data / "mine" / "test.jsonl", [{"question": f"q{i}"} for i in range(8)])
    (tmp_path / "own").mkdir()

    def loaded(yaml: str, name: str = "mine") -> Any:
        (tmp_path / "own" / "any.yaml").write_text(yaml)
        return load_task(data, name, include_path=str(tmp_path / "own"))

    return loaded


def test_own_tasks_by_include_path(load_mine, tmp_path):
    assert len(load_mine(OWN + ACCURACY).task_docs) == 8
    (tmp_path / "own" / "group.yaml").write_text("group: gsm8k\ntask: [mine]\n")
    assert load_mine(OWN + ACCURACY, "gsm8k"), "the user's group, not lm-eval's task"
    with pytest.raises(TaskError, match=r"mine is no lm-eval task, group or tag"):
        load_mine((OWN + ACCURACY).replace("mine", "yours"))
    with pytest.raises(TaskError, match="is no folder"):
        load_task(None, "x", include_path=str(tmp_path / "absent"))
    with pytest.raises(TaskError, match="task.include_path=own task.name=any"):
        load_task(None, "own/any.yaml")


@pytest.mark.slow
def test_any_lm_eval_task_and_unknown_names(data):
    """Indexes all of lm-eval, once."""
    with pytest.raises(TaskError, match=r"arc_esay is no lm-eval task.*Did you mean 'arc_easy'"):
        load_task(data, "arc_esay")
    index = task_index._full_index(None)._index
    files = task_index._task_files()
    assert len(files) > 12_000, "a quoted key"
    assert "mmlu_virology" in files, "a quoted key"
    for name, file in files.items():
        assert str(index[name].yaml_path) == file


def test_other_tasks_that_execute_code_are_refused(data):
    """Before their module is imported, which fetches and runs a metric script."""
    with pytest.raises(TaskError, match="humaneval_instruct executes code that the model wrote"):
        load_task(data, "humaneval_instruct")


SHUFFLING = """
import random

def process_docs(split):
    return split.map(lambda row: row | {"order": random.sample(["a", "b", "c", "d", "e"], 5)})
"""


def test_documents_that_are_shuffled_are_the_same_everywhere(load_mine, tmp_path):
    """Prompts, scores and a restart see one order. process_docs draws from the global generator."""
    (tmp_path / "own" / "shuffling.py").write_text(SHUFFLING)
    choices_in_order = OWN.replace("[a, b]", '"{{order}}"')
    yaml = choices_in_order + ACCURACY + "process_docs: !function shuffling.process_docs\n"
    task = load_mine(yaml)
    orders = [document["order"] for document in task.task_docs]
    # equal by chance in all documents: 1 in 120 to the 7th
    assert len({tuple(order) for order in orders}) > 1, "not shuffled"

    task.build_all_requests()
    scored_choices = [instance.args[1].strip() for instance in task.instances]
    assert scored_choices == list(chain.from_iterable(orders))
    assert [document["order"] for document in task.eval_docs] == orders
    loaded_again = load_mine(yaml)
    assert [document["order"] for document in loaded_again.task_docs] == orders
