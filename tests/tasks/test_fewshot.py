"""Breaks if a prompt contains its own document, if other prompts change, or if no note says
where examples come from."""

from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.results.identity import task_settings
from moe_lab.results.marks import marks_of
from moe_lab.tasks.fewshot import examples_split
from moe_lab.tasks.loading import load_tasks
from tests.support.documents import PROBLEMS
from tests.support.runs import load_task, write_jsonl
from tests.support.stored_results import block_of, result_with

QUESTIONS = [{"question": f"Which colour is number {i}?", "answer": i % 3} for i in range(7)]
OTHERS = [{"question": f"Which colour is other {i}?", "answer": i % 3} for i in range(7)]
YAML = """\
task: colours
custom_dataset: !function data.splits
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["red", "green", "blue"]
doc_to_target: answer
metric_list: [{metric: acc}]
"""
DATA = f"""\
from datasets import Dataset
from lm_eval.api.samplers import ContextSampler

DATA = {{"test": Dataset.from_list({QUESTIONS}), "train": Dataset.from_list({OTHERS})}}
DATA["nan"] = Dataset.from_list([row | {{"score": float("nan")}} for row in {QUESTIONS}])
DATA["twice"] = Dataset.from_list([{QUESTIONS[0]}] * 6 + [{QUESTIONS[1]}])

def splits(**options):
    return dict(DATA)

def longer(split):
    return split.map(lambda row: {{"question": row["question"] + " Say it."}})

class Careless(ContextSampler):
    def sample(self, n, eval_doc=None, **options):
        return self.df[:n]
"""


def colours(folder: Path, keys: str, yaml: str = YAML, **settings: Any) -> Any:
    """The task of the YAML with further keys, with three examples."""
    (folder / "colours.yaml").write_text(yaml + keys)
    (folder / "data.py").write_text(DATA)
    return load_task(None, "colours", include_path=str(folder), **{"num_fewshot": 3} | settings)


def of_lm_eval(folder: Path) -> Any:
    """The task as lm-eval loads it."""
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    [task] = manager.load(["colours"])["tasks"].values()
    task.set_config("num_fewshot", 3)
    task.set_fewshot_seed(1234)
    return task


def prompts(task: Any) -> list[str]:
    task.build_all_requests()
    first = [instance for instance in task.instances if instance.idx == 0]
    return [instance.args[0] for instance in first]


LEAKING = {
    "a test split only": "test_split: test",
    "evaluated on its validation split": "validation_split: test\nfewshot_split: test",
    "trained on its test split": "training_split: test\ntest_split: test",
    "first_n": "test_split: test\nfewshot_config: {sampler: first_n}",
    "first_n of a validation split": (
        "validation_split: test\nfewshot_config: {sampler: first_n, split: test}"
    ),
}


@pytest.mark.parametrize("kind", LEAKING)
def test_no_prompt_contains_its_own_document(kind, tmp_path):
    """As lm-eval's own with its evaluated split named as `fewshot_split`, where
    it leaves the document out itself.

    The sampler `first_n` of 0.5 does not: its examples are the first of the others.
    """
    task = colours(tmp_path, LEAKING[kind])
    task_prompts = prompts(task)
    for question, prompt in zip(QUESTIONS, task_prompts, strict=True):
        assert prompt.count(question["question"]) == 1
        assert prompt.count("Which colour") == 4
    if "first_n" in kind:
        for question, prompt in zip(QUESTIONS, task_prompts, strict=True):
            other_questions = [
                other_question["question"]
                for other_question in QUESTIONS
                if other_question != question
            ]
            assert all(other_question in prompt for other_question in other_questions[:3])
        return
    (tmp_path / "colours.yaml").write_text(f"{YAML}test_split: test\nfewshot_split: test")
    assert task_prompts == prompts(of_lm_eval(tmp_path))


def test_humaneval_never_shows_the_solution_that_it_asks_for(tmp_path):
    problems = [
        problem
        | {"task_id": f"HumanEval/{i}", "prompt": problem["prompt"].replace("def ", f"def a{i}_")}
        for i, problem in enumerate([*PROBLEMS, *PROBLEMS, *PROBLEMS])
    ]
    write_jsonl(tmp_path / "humaneval" / "test.jsonl", problems)
    task = load_task(tmp_path, "humaneval", num_fewshot=2)
    for number, prompt in enumerate(prompts(task)):
        assert prompt.count(f"def a{number}_") == 1


def test_in_letters_and_in_a_group(tmp_path, small_index):
    (tmp_path / "data.py").write_text(DATA)
    inner = "".join(f"    {line}\n" for line in (YAML + "test_split: test\n").splitlines())
    (tmp_path / "both.yaml").write_text("group: both\ntask:\n  -\n" + inner)
    task = TaskConfig(name="both", include_path=str(tmp_path), answer="text")
    [grouped] = load_tasks(Config(task=task, num_fewshot=3))["tasks"].values()
    lettered_task = colours(tmp_path, "test_split: test", answer="letters")
    for task_of_letters in (grouped, lettered_task):
        for question, prompt in zip(QUESTIONS, prompts(task_of_letters), strict=True):
            assert prompt.count(question["question"]) == 1


def test_references_with_examples_of_their_own_split(tmp_path):
    (tmp_path / "colours.yaml").write_text(YAML + "training_split: test\ntest_split: train\n")
    (tmp_path / "data.py").write_text(DATA)
    config = Config(task=TaskConfig(name="colours", include_path=str(tmp_path)), num_fewshot=3)
    [task] = load_tasks(config, splits=("training_split",))["tasks"].values()
    for question, prompt in zip(QUESTIONS, prompts(task), strict=True):
        assert prompt.count(question["question"]) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "test_split: test\nfewshot_config: {sampler: !function data.Careless}",
            r"its sampler \(Careless\) does not",
        ),
        ("test_split: nan", r"its sampler \(ContextSampler\) does not leave it out"),
        ("test_split: twice", "fewer than num_fewshot=3 examples that differ from the document"),
        (
            (
                "test_split: test\nfewshot_split: test\n"
                "fewshot_config: {process_docs: !function data.longer}"
            ),
            (
                r"another process_docs(.|\n"
                r")*Use num_fewshot=0, or examples of another split: task.fewshot_split="
            ),
        ),
    ],
)
def test_what_cannot_be_left_out_is_refused(keys, message, tmp_path):
    with pytest.raises(TaskError, match=message):
        prompts(colours(tmp_path, keys))


@pytest.mark.parametrize(
    "keys",
    [
        "training_split: train\ntest_split: test",
        "training_split: train\nvalidation_split: test",
        "test_split: test\nfewshot_split: train",
        "validation_split: test",
        "test_split: test\nfewshot_split: test",
    ],
)
def test_where_lm_eval_shows_no_document_itself_prompts_and_ids_stay(keys, tmp_path):
    task = colours(tmp_path, keys)
    plain = of_lm_eval(tmp_path)
    assert prompts(task) == prompts(plain)
    kept_keys = ("test_split", "fewshot_split", "validation_split", "fewshot_config")
    own_settings = task_settings(task)
    plain_settings = task_settings(plain)
    assert {key: own_settings.get(key) for key in kept_keys} == {
        key: plain_settings.get(key) for key in kept_keys
    }


def test_a_run_whose_prompts_showed_the_answer_has_another_id(tmp_path):
    """Without examples it keeps its id: lm-eval names no split of examples then."""
    for shots, split in ((0, None), (3, "test")):
        settings: Any = task_settings(colours(tmp_path, "test_split: test", num_fewshot=shots))
        assert settings["fewshot_config"].get("split") == split


def test_too_many_examples_are_counted_without_the_document(tmp_path):
    with pytest.raises(
        TaskError, match="num_fewshot=7 is more than the 6 examples that colours has"
    ):
        colours(tmp_path, "test_split: test", num_fewshot=7)
    with pytest.raises(
        TaskError, match="num_fewshot=7 is more than the 6 examples that colours has"
    ):
        # lm-eval draws one more here, too, and would end in "Sample larger than population"
        colours(tmp_path, "training_split: train\nvalidation_split: test", num_fewshot=7)


@pytest.mark.parametrize(
    ("keys", "shots", "noted"),
    [
        ("test_split: test", 3, True),
        ("test_split: test", 0, False),
        ("validation_split: test\nfewshot_split: test", 3, True),
        ("training_split: train\ntest_split: test", 3, False),
        ("test_split: test\nfewshot_config: {samples: [{question: q, answer: 0}]}", 1, False),
    ],
)
def test_a_note_says_that_examples_come_from_the_evaluated_split(keys, shots, noted, tmp_path):
    task = colours(tmp_path, keys, num_fewshot=shots)
    evaluation = {"configs": {"colours": task.dump_config()}}
    result = result_with(
        {"colours": {"acc,none": 0.5}}, content=evaluation, **block_of(task="colours")
    )
    assert ("test-examples" in marks_of(result, "colours")) is noted
    evaluated = task.config.test_split or task.config.validation_split
    assert (bool(shots) and examples_split(task) == evaluated) is noted
