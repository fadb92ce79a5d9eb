"""`task.self_consistency`: breaks if another answer than the majority's is evaluated, or a task without an answer votes."""

from __future__ import annotations

from pathlib import Path

import pytest
from lm_eval.api.instance import Instance

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError, TaskError
from moe_lab.tasks.arithmetic.numbers import answer_number
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.self_consistency import TEMPERATURE, voted
from tests.support.runs import small_data, sums, write_jsonl

TEXTS = [
    ["#### 4", "#### 5", "so 5", "no number", "it is 4.", "#### 5", "4", "#### 5"],
    ["#### 7", "#### 6", "6", "7"],
    ["none", "#### 9", "nothing"],
]
"""Sampled answers: a majority, a tie, and one of samples without an answer."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data"))


def load(name: str, data: Path | None = None, votes: int | None = 8, **keys):
    task = TaskConfig(name=name, self_consistency=votes)
    return load_tasks(Config(task=task, data_dir=str(data) if data else None, **keys))["tasks"][name]


def vote_by_loop(answers: list[str]) -> str:
    """The answer with the most votes; of several, the one that came first."""
    best, most = "", 0
    for answer in answers:
        votes = sum(other == answer for other in answers)
        if votes > most:
            best, most = answer, votes
    return best


def evaluated(task, texts: list[str]) -> dict[str, str]:
    """What each of the task's filters passes on."""
    instance = Instance("generate_until", {}, ("", {}), 0, resps=list(texts))
    for ensemble in task._filters:
        ensemble.apply([instance])
    return instance.filtered_resps


@pytest.mark.parametrize("texts", TEXTS)
def test_the_vote_is_that_of_a_loop(texts: list[str], data: Path) -> None:
    expected = vote_by_loop([answer_number(text) for text in texts])
    assert evaluated(load("addsub", data), texts) == {"numeric": expected}
    strict = [text[5:] if text.startswith("####") else "[invalid]" for text in texts]
    assert evaluated(load("gsm8k", data, num_fewshot=0), texts)["strict-match"] == vote_by_loop(strict)
    assert evaluated(load("toy_math"), texts) == {"none": vote_by_loop(strict)}


def test_right_is_what_the_vote_says(data: Path) -> None:
    task = load("addsub", data)
    document = {"answer": "5"}
    assert task.process_results(document, [evaluated(task, TEXTS[0])["numeric"]]) == {"exact_match": 1.0}
    alone = load("addsub", data, votes=None)
    assert alone.process_results(document, [evaluated(alone, TEXTS[0])["numeric"]]) == {"exact_match": 0.0}


def test_samples_are_asked_for(data: Path) -> None:
    settings = load("addsub", data).config
    assert (settings.repeats, settings.generation_kwargs["do_sample"]) == (8, True)
    assert settings.generation_kwargs["temperature"] == TEMPERATURE
    warm = load("addsub", data, gen_kwargs={"temperature": 0.3}).config.generation_kwargs
    assert (warm["do_sample"], warm["temperature"]) == (True, 0.3)
    assert load("addsub", data, gen_kwargs={"temperature": 0}).config.generation_kwargs["do_sample"] is False
    assert load("addsub", data, votes=None).config.repeats == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("toy_choice", "toy_choice scores given texts"),
        ("toy_text", "toy_text scores given texts"),
        ("humaneval", "humaneval executes programs"),
        ("toy_safety", "toy_safety is judged"),
    ],
)
def test_tasks_without_an_extracted_answer_are_refused(name: str, says: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / name / "test.jsonl", sums(1))
    with pytest.raises(TaskError, match=f"task.self_consistency=8.*{says}"):
        load(name, tmp_path)


@pytest.mark.parametrize("functions", [["take_first"], ["regex"], ["take_first", "regex"], None])
def test_filters_that_extract_nothing_from_every_sample_are_refused(functions: list[str] | None) -> None:
    config = {"task": "my_task", "output_type": "generate_until"}
    if functions is not None:
        config["filter_list"] = [{"name": "none", "filter": [{"function": one} for one in functions]}]
    with pytest.raises(TaskError, match="my_task extracts none"):
        voted(config, 3)


def test_tasks_with_samples_of_their_own_are_refused() -> None:
    with pytest.raises(TaskError, match="gsm8k_cot_self_consistency has repeats=64 of its own"):
        voted({"task": "gsm8k_cot_self_consistency", "output_type": "generate_until", "repeats": 64}, 3)


def test_one_sample_is_no_vote() -> None:
    with pytest.raises(ConfigError, match="task.self_consistency=1"):
        TaskConfig(self_consistency=1)
