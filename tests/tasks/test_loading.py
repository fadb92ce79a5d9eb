"""Breaks if a documented task needs all of lm-eval to be read, or if a setting is not what the user gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_lab.config.catalog import resource_folder
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError, TaskError
from moe_lab.tasks import loading
from moe_lab.tasks.loading import load_tasks
from tests.support.documents import PROBLEMS
from tests.support.runs import small_data, write_jsonl

DOCUMENTED = sorted(
    file.stem for file in (resource_folder("conf") / "task").glob("*.yaml") if file.stem != "lm_eval"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return small_data(tmp_path / "data")


def load(data: Path, task: str, **keys: Any) -> Any:
    return load_tasks(Config(task=TaskConfig(name=task), data_dir=str(data), **keys))["tasks"][task]


def prompts(task: Any) -> list[str]:
    task.build_all_requests()
    return [instance.args[0] for instance in task.instances]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_task_is_one_file(name: str) -> None:
    options = yaml.safe_load((resource_folder("conf") / "task" / f"{name}.yaml").read_text())
    assert options["name"] == name
    assert loading.task_file(name) is not None or name == "mmlu", "a group of 57 files"
    if options["metric"] is None:
        assert "judges" in options or options["category"] == "code", (
            "judges' metrics, or those of the prompt's form"
        )
        return
    metric, _, filter_name = options["metric"].partition(",")
    assert metric and filter_name


def test_documented_tasks_do_not_index_lm_eval(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_full_index", lambda path: pytest.fail("indexed"))
    for name in ("gsm8k", "arc_easy", "addsub"):
        load(data, name, num_fewshot=1)


def test_headline_metrics_are_reported_by_their_tasks(data: Path) -> None:
    for name, metric in {"gsm8k": "exact_match", "arc_easy": "acc_norm", "addsub": "exact_match"}.items():
        assert metric in load(data, name, num_fewshot=0).aggregation()
    assert [one.name for one in load(data, "addsub")._filters] == ["numeric"]
    assert "strict-match" in [one.name for one in load(data, "gsm8k", num_fewshot=0)._filters]


def test_given_shots_win_and_the_tasks_own_stand_otherwise(data: Path) -> None:
    assert load(data, "addsub").get_config("num_fewshot") == 0
    assert load(data, "addsub", num_fewshot=3).get_config("num_fewshot") == 3, "lm-eval would keep 0"
    assert load(data, "arc_easy").get_config("num_fewshot") == 0
    with pytest.raises(TaskError, match="num_fewshot=5 is more than the 4 examples that gsm8k has"):
        load(data, "gsm8k")


def test_the_fewshot_seed_alone_chooses_examples(data: Path) -> None:
    first, again, other = (prompts(load(data, "arc_easy", num_fewshot=2, fewshot_seed=s)) for s in (1, 1, 2))
    assert first == again != other
    assert prompts(load(data, "arc_easy", num_fewshot=2, fewshot_seed=1, seed=5, sample_seed=9)) == first


def test_an_own_test_split_never_shows_the_question_it_asks(data: Path) -> None:
    for document, prompt in zip(
        (task := load(data, "addsub", num_fewshot=4)).task_docs, prompts(task), strict=True
    ):
        assert prompt.count(document["question"]) == 1


def test_fewshot_split_is_obeyed(data: Path) -> None:
    write_jsonl(
        data / "gsm8k" / "extra.jsonl", [{"question": f"extra {i}", "answer": "#### 1"} for i in range(5)]
    )
    config = Config(task=TaskConfig(name="gsm8k", fewshot_split="extra"), data_dir=str(data), num_fewshot=5)
    assert "extra" in prompts(load_tasks(config)["tasks"]["gsm8k"])[0]
    with pytest.raises(TaskError, match=r"gsm8k/absent\.jsonl is missing"):
        load_tasks(
            Config(task=TaskConfig(name="gsm8k", fewshot_split="absent"), data_dir=str(data), num_fewshot=2)
        )


@pytest.mark.parametrize("shots", [0, 2])
def test_an_unknown_split_of_a_generated_task_lists_its_splits(data: Path, shots: int) -> None:
    task = TaskConfig(name="toy_math", fewshot_split="bla")
    with pytest.raises(
        TaskError, match="fewshot_split=bla is no split of toy_math. Its splits: test, train, val"
    ):
        load_tasks(Config(task=task, num_fewshot=shots))


def test_a_defect_of_a_generated_task_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise TypeError("a defect")

    monkeypatch.setattr("moe_lab.tasks.toy._datasets", broken)
    with pytest.raises(TypeError, match="a defect"):
        load_tasks(Config(task=TaskConfig(name="toy_text")))


def test_a_grid_has_both_forms_of_a_task(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "humaneval" / "test.jsonl", PROBLEMS)
    with loading.task_cache():
        chat, plain = (load(tmp_path, "humaneval", apply_chat_template=given) for given in (True, False))
    assert chat.config.gen_prefix and not plain.config.gen_prefix


def test_generation_settings_extend_the_tasks_own(data: Path) -> None:
    settings = load(data, "addsub", gen_kwargs={"max_gen_toks": 7}).get_config("generation_kwargs")
    assert settings["max_gen_toks"] == 7 and "Question:" in settings["until"]


@pytest.mark.parametrize(
    "spelling", ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"]
)
def test_one_spelling_of_the_number_of_new_tokens_replaces_the_tasks_own(data: Path, spelling: str) -> None:
    """lm-eval takes the first of its own order, whoever gave it."""
    from lm_eval.models.utils import normalize_gen_kwargs

    task = load(data, "addsub", gen_kwargs={spelling: 4})
    task.build_all_requests()
    assert normalize_gen_kwargs(task.instances[0].args[1])["max_gen_toks"] == 4


@pytest.mark.parametrize(
    ("given", "sampled", "temperature"),
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
def test_sampling_is_on_where_it_is_asked_for(
    data: Path, given: dict[str, Any], sampled: bool, temperature: float | None
) -> None:
    """addsub says do_sample: false and temperature: 0.0, of which the second cannot be sampled with."""
    settings = load(data, "addsub", gen_kwargs=given).get_config("generation_kwargs")
    assert settings["do_sample"] is sampled and settings.get("temperature") == temperature


def test_sampling_at_temperature_0_is_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match="temperature=0 is greedy"):
        load(data, "addsub", gen_kwargs={"temperature": 0.0, "do_sample": True})


def test_predict_only_computes_no_metric(data: Path) -> None:
    assert list(load(data, "addsub", predict_only=True).aggregation()) == ["bypass"]


def test_own_tasks_by_include_path(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskError, match="is no folder"):
        load_tasks(Config(task=TaskConfig(name="x", include_path=str(tmp_path / "absent"))))

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.yaml").write_text(
        "task: my_sums\ntest_split: test\noutput_type: generate_until\ndoc_to_text: '{{question}}'\n"
        "doc_to_target: '{{answer}}'\ndataset_path: nobody/nothing\ngeneration_kwargs: {until: ['.']}\n"
        "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
    )
    write_jsonl(data / "my_sums" / "test.jsonl", [{"question": "1+1", "answer": "2"}])
    mine = TaskConfig(name="my_sums", include_path=str(tmp_path / "mine"))
    # The index of lm-eval's tasks takes seconds to build, and is not needed here.
    monkeypatch.setattr(loading, "_full_index", lambda _: pytest.fail("the whole index was built"))
    assert list(load_tasks(Config(task=mine, data_dir=str(data)))["tasks"]) == ["my_sums"]


@pytest.mark.slow
def test_any_lm_eval_task_and_unknown_names(data: Path) -> None:
    """Indexes all of lm-eval, once."""
    with pytest.raises(TaskError, match=r"arc_esay is no lm-eval task.*Did you mean 'arc_easy'"):
        load(data, "arc_esay")
    subjects = ["anatomy", "virology"]
    rows = [{"question": "q", "subject": s, "choices": list("abcd"), "answer": 1} for s in subjects]
    write_jsonl(data / "mmlu" / "test.jsonl", rows)
    with pytest.raises(TaskError, match="no row with subject="):
        load_tasks(Config(task=TaskConfig(name="mmlu", data_filter="subject"), data_dir=str(data)))


def test_other_tasks_that_execute_code_are_refused(data: Path) -> None:
    """Before their module is imported, which fetches and runs a metric script."""
    write_jsonl(
        data / "humaneval_instruct" / "test.jsonl",
        [{"task_id": "a", "prompt": "def f():", "test": "assert True", "entry_point": "f"}],
    )
    with pytest.raises(TaskError, match="humaneval_instruct executes code that the model wrote"):
        load(data, "humaneval_instruct")


SHUFFLED = """
task: shuffled
test_split: test
training_split: train
dataset_path: nobody/nothing
output_type: multiple_choice
process_docs: !function shuffling.process_docs
doc_to_text: "{{question}}"
doc_to_choice: "{{order}}"
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
SHUFFLING = """
import random

def process_docs(split):
    return split.map(lambda row: row | {"order": random.sample(["a", "b", "c", "d", "e"], 5)})
"""


def test_documents_that_are_shuffled_are_the_same_everywhere(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, scores and a restart see one order, though process_docs draws from the global generator."""
    (tmp_path / "shuffling.py").write_text(SHUFFLING)
    (tmp_path / "shuffled.yaml").write_text(SHUFFLED)
    write_jsonl(data / "shuffled" / "test.jsonl", [{"question": f"q{i}"} for i in range(8)])
    monkeypatch.setattr(loading, "task_file", lambda name: tmp_path / f"{name}.yaml")
    task = load(data, "shuffled")
    orders = [document["order"] for document in task.task_docs]
    task.build_all_requests()
    assert [instance.args[1].strip() for instance in task.instances] == [
        one for order in orders for one in order
    ]
    assert [document["order"] for document in task.eval_docs] == orders
    assert len({tuple(order) for order in orders}) > 1, "they are shuffled (all equal: 1 in 120 to the 7th)"
    again = load(data, "shuffled")
    assert [document["order"] for document in again.task_docs] == orders


def test_a_folder_of_other_yaml_files_is_named(tmp_path: Path, small_index: None) -> None:
    (tmp_path / "other.yaml").write_text("task: null\n")
    with pytest.raises(TaskError, match=r"task\.include_path=.*is no folder of tasks"):
        load_tasks(Config(task=TaskConfig(name="x", include_path=str(tmp_path))))


OWN = (
    "task: mine\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{question}}'\n"
    "doc_to_choice: [a, b]\ndoc_to_target: 0\ndataset_path: nobody/nothing\nmetric_list: "
)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (
            "[{metric: accuracyy}]",
            r"mine\.yaml\): metric: accuracyy is no metric of lm-eval\.\nMetrics: acc, ",
        ),
        ("[{metric: exact_mtch, aggregation: mean}]", "Did you mean 'exact_match'?"),
        ("[{metric: acc, aggregation: maen}]", r"aggregation: maen, which.*Did you mean 'mean'?"),
        ("[acc]", "metric_list has the entry acc. Write it as metric: acc"),
    ],
)
def test_a_metric_that_lm_eval_lacks_is_named(
    metrics: str, message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval raises KeyError(None), which was reported as a split, or fails after the last answer."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(OWN + metrics)
    write_jsonl(data / "mine" / "test.jsonl", [{"question": "q"}])
    mine = TaskConfig(name="mine", include_path=str(tmp_path / "own"))
    with pytest.raises(TaskError, match=message):
        load_tasks(Config(task=mine, data_dir=str(data)))


def test_a_metric_of_lm_eval_that_names_the_package_evaluate_is_none_that_is_lacking(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval's kobest and masakhanews have it: `evaluate` would ask the hub, and only their aggregation is used."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(OWN + "[{metric: f1, aggregation: mean, hf_evaluate: true}]")
    write_jsonl(data / "mine" / "test.jsonl", [{"question": "q"}])
    mine = TaskConfig(name="mine", include_path=str(tmp_path / "own"))
    assert list(load_tasks(Config(task=mine, data_dir=str(data)))["tasks"]) == ["mine"]


def test_a_yaml_with_a_syntax_error_is_named_with_its_line(tmp_path: Path, small_index: None) -> None:
    """lm-eval skips the file, so that its task is unknown."""
    (tmp_path / "mine.yaml").write_text("task: mine\nmetric_list: [\n  - metric: acc\ntest_split: test\n")
    with pytest.raises(TaskError, match=r"task\.name=mine is no lm-eval task(.|\n)*mine\.yaml, line \d: "):
        load_tasks(Config(task=TaskConfig(name="mine", include_path=str(tmp_path))))
