"""Breaks if one metric's error costs another metric, an answer or a run that it is compared with;
if the failure is named without task, metric or document; or if lm-eval resamples.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval.api.metrics
import pytest
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate

from moe_lab.config.schema import Config
from moe_lab.errors import ResultsError
from moe_lab.models.lm_eval_internals import answers_for_lm_eval, request_arguments
from moe_lab.results.samples import Sample
from moe_lab.runs.evaluation.run_lm_eval import evaluate_tasks
from moe_lab.tasks.metric_boundaries.boundary import first_failing, is_number
from moe_lab.tasks.metric_errors import check_scores
from tests.support.command import run_command
from tests.support.runs import load_task, write_jsonl

CHOICES = """\
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
"""
TEXTS = 'output_type: generate_until\ndoc_to_text: "{{question}}"\ndoc_to_target: "{{answer}}"\n'
PAGES = 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{page}}"\n'
FUNCTIONS = """\
import numpy
import torch

def values(document, results):
    number = int(document["answer"])
    return {"good": 1.0, "bad": {2: None, 3: "text"}.get(number, 0.5), "worse": number}

def raises(document, results):
    return {"good": 1 // (int(document["answer"]) - 2)}

def no_twos(values):
    return 6 / (0 if 2 in values else 3)

def of_arrays(document, results):
    number = int(document["answer"])
    return {"good": torch.tensor(1.0) if number else numpy.array(0.0)}

def none(values):
    raise ValueError("no score")

def array(values):
    return [len(values)]

def spaces(responses, documents):
    return [[1 / (len(text) - 4) for text in texts] for texts in responses]
"""


class Answers(LM):
    """Gives the texts of `texts` in turn, and log-likelihoods by the length of what is asked."""

    def __init__(self, texts: Sequence[str]):
        super().__init__()
        self.texts = texts

    def generate_until(self, requests: list[Any]) -> list[str]:
        return [self.texts[number % len(self.texts)] for number in range(len(requests))]

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [(-1.5 * len(request.args[1]), False) for request in requests]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[Any]:
        answers = [-0.8 * len(request_arguments(request)[0]) for request in requests]
        return answers_for_lm_eval("loglikelihood_rolling", answers)


def evaluated(
    folder: Path, yaml: str, rows: list[dict[str, Any]], texts: Sequence[str] = ("1",)
) -> dict[str, Any]:
    """The results of the task `mine`; all rows but the first are evaluated."""
    write_jsonl(folder / "mine" / "test.jsonl", rows)
    (folder / "mine.yaml").write_text(f"task: mine\ndataset_path: json\ntest_split: test\n{yaml}")
    (folder / "functions.py").write_text(FUNCTIONS)
    task = load_task(folder, "mine", include_path=str(folder))
    numbers = list(range(1, len(rows))) if len(rows) > 2 else None
    evaluated = evaluate_tasks(
        Config(), {"tasks": {"mine": task}}, Answers(texts), {"mine": numbers}
    )
    outcome = {
        **evaluated.content,
        "samples": evaluated.samples,
        "failures": evaluated.failures,
    }
    assert not {"apply_filters", "process_results", "aggregation"} & vars(task).keys(), (
        "the task is as before"
    )
    outcome["scores"] = {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in outcome["results"]["mine"].items()
        if "," in key
    }
    outcome["said"] = [str(failure) for failure in outcome["failures"]]
    return outcome


def score_of_lm_eval(
    folder: Path, metric: str, numbers: list[int], texts: Sequence[str] = ("1",)
) -> Any:
    """lm-eval's own score of the task `mine`; None where its metric fails or computes no number."""
    task = load_task(folder, "mine", include_path=str(folder))
    tasks: Any = {"tasks": {"mine": task}}
    try:
        evaluated_task = evaluate(
            lm=Answers(texts), task_dict=tasks, samples={"mine": numbers}, bootstrap_iters=0
        )
    except Exception:
        return None
    assert evaluated_task is not None
    score = evaluated_task["results"]["mine"][metric]
    return score if is_number(score) else None


def questions(*answers: Any) -> list[dict[str, Any]]:
    return [{"question": f"q{i}?", "answer": answer} for i, answer in enumerate(answers)]


def test_brier_score_of_questions_with_other_numbers_of_choices(tmp_path):
    choices = [["a", "b"], ["a", "b"], ["c", "d"], ["a", "b", "c"]]
    rows = [{"question": "q?", "choices": options, "answer": 1} for options in choices]
    metrics = "metric_list: [{metric: acc}, {metric: brier_score}]"
    outcome = evaluated(tmp_path, CHOICES + metrics, rows)
    assert outcome["scores"]["acc,none"] == 0.0
    # 0.4 has none, and 0.5 a mean
    score_of_hf = score_of_lm_eval(tmp_path, "brier_score,none", [1, 2, 3])
    assert outcome["scores"]["brier_score,none"] == score_of_hf
    if score_of_hf is None:
        [failure] = outcome["said"]
        assert failure.startswith(
            "mine, brier_score,none, document 3: ValueError: setting an array element"
        )
    whole = evaluated(tmp_path, CHOICES + metrics, rows[:3])
    assert whole["scores"]["brier_score,none"] == pytest.approx(0.5)
    assert whole["said"] == []
    [value, _] = [Sample.of(line).values["brier_score"] for line in whole["samples"]["mine"]]
    expected = (1, [0.5, 0.5]) if score_of_hf is None else 0.5
    assert value == expected, "an array is a list, which a log keeps"


def test_a_metric_that_is_no_number_in_lm_eval(tmp_path):
    rows = [{"question": "q?", "choices": ["a", "b"], "answer": 1}] * 3
    outcome = evaluated(
        tmp_path, CHOICES + "metric_list: [{metric: likelihood}, {metric: acc}]", rows
    )
    expected = score_of_lm_eval(tmp_path, "likelihood,none", [1, 2])  # 0.4 has none, and 0.5 a mean
    assert outcome["scores"]["likelihood,none"] == expected
    assert outcome["scores"]["acc,none"] == 0.0
    if expected is None:
        assert outcome["said"] == [
            "mine, likelihood,none, document 1: its value is (1, (-3.0, -3.0)), which is no number"
        ]


METRICS = (
    "metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]"
)


def test_perplexity_of_text_without_spaces(tmp_path):
    """exp(nats per word) is above the largest float64 where a page is one word."""
    outcome = evaluated(
        tmp_path, PAGES + METRICS, [{"page": "x"}, {"page": "y" * 2000}, {"page": "z" * 2000}]
    )
    assert outcome["scores"]["word_perplexity,none"] is None
    assert outcome["scores"]["byte_perplexity,none"] == pytest.approx(math.exp(0.8))
    assert outcome["said"] == [
        "mine, word_perplexity,none, document 1: OverflowError: math range error"
    ]


def test_empty_pages_have_no_score_per_byte(tmp_path):
    outcome = evaluated(tmp_path, PAGES + METRICS, [{"page": ""}, {"page": ""}])
    assert outcome["scores"]["word_perplexity,none"] == 1.0, "lm-eval counts one word"
    assert outcome["scores"]["byte_perplexity,none"] is None
    assert outcome["scores"]["bits_per_byte,none"] is None
    assert [failure.partition(": ")[0] for failure in outcome["said"]] == [
        "mine, byte_perplexity,none, document 0",
        "mine, bits_per_byte,none, document 0",
    ]


def test_an_answer_that_reads_as_a_list(tmp_path):
    """lm-eval 0.4 takes [1, 2] for two right answers, and its pattern takes no numbers."""
    pattern = "{metric: exact_match, regexes_to_ignore: [x]}"
    outcome = evaluated(
        tmp_path, TEXTS + f"metric_list: [{pattern}]", questions("[1, 2]", "[1, 2]")
    )
    expected = score_of_lm_eval(tmp_path, "exact_match,none", [0, 1])
    assert outcome["scores"]["exact_match,none"] == expected
    if expected is None:
        assert outcome["said"] == [
            "mine, exact_match,none, document 0: TypeError: expected string or bytes-like "
            "object, got 'int'"
        ]


PROCESS = "process_results: !function functions.values\nmetric_list:\n"
OWN = [
    f"- {{metric: {name}, aggregation: {how}}}\n"
    for name, how in (("good", "mean"), ("bad", "mean"))
]


def test_values_that_are_no_numbers_and_an_aggregation_that_raises(tmp_path):
    """Of the documents 1, 2 and 3 `bad` has the values 0.5, None and "text". The aggregation of
    `worse` raises for a value 2."""
    yaml = TEXTS + PROCESS + "".join(OWN)
    yaml += "- {metric: worse, aggregation: !function functions.no_twos, higher_is_better: true}\n"
    outcome = evaluated(tmp_path, yaml, questions("0", "1", "2", "3"))
    assert outcome["scores"] == {
        "good,none": 1.0,
        "good_stderr,none": 0.0,
        "bad,none": None,
        "bad_stderr,none": None,
        "worse,none": None,
        "worse_stderr,none": "N/A",
    }
    assert outcome["said"] == [
        "mine, bad,none, document 2: its value is None, which is no number",
        "mine, worse,none, document 2: ZeroDivisionError: division by zero",
    ]
    values = [Sample.of(line).values for line in outcome["samples"]["mine"]]
    assert [value.get("bad") for value in values] == [0.5, None, None]
    assert values[2]["worse"] == 3
    with pytest.raises(
        ResultsError, match=r"bad,none, document 2(.|\n)*Neither could worse,none of mine\."
    ):
        check_scores(outcome["failures"])


def test_arrays_without_a_dimension_are_numbers(tmp_path):
    """lm-eval's mean takes them: two of three are 1."""
    process = (
        "process_results: !function functions.of_arrays\n"
        "metric_list: [{metric: good, aggregation: mean}]"
    )
    outcome = evaluated(tmp_path, TEXTS + process, questions("0", "0", "1", "2"))
    assert outcome["said"] == []
    assert outcome["scores"]["good,none"] == pytest.approx(2 / 3)
    assert [Sample.of(line).values for line in outcome["samples"]["mine"]] == [
        {"good": n} for n in (0.0, 1.0, 1.0)
    ]


def test_a_function_that_raises_and_a_score_that_is_a_list(tmp_path):
    process = (
        "process_results: !function functions.raises\n"
        "metric_list: [{metric: good, aggregation: mean}]"
    )
    outcome = evaluated(tmp_path, TEXTS + process, questions("0", "1", "2", "3"))
    assert outcome["said"] == [
        "mine, good,none, document 2: ZeroDivisionError: integer division or modulo by zero"
    ]
    listed = "metric_list: [{metric: exact_match, aggregation: !function functions.array}]"
    outcome = evaluated(tmp_path, TEXTS + listed, questions("0", "1", "2"))
    assert outcome["said"] == ["mine, exact_match,none: its value is [2], which is no number"]


def test_a_filter_that_fails_with_one_answer_costs_its_own_scores_alone(tmp_path):
    filters = """filter_list:
- {name: plain, filter: [{function: take_first}]}
- name: own
  filter:
  - {function: custom, filter_fn: !function functions.spaces}
  - {function: take_first}
metric_list: [{metric: exact_match}]"""
    outcome = evaluated(
        tmp_path, TEXTS + filters, questions("x", "one", "four"), texts=["one", "four"]
    )
    assert outcome["scores"]["exact_match,plain"] == 1.0
    assert outcome["scores"]["exact_match,own"] is None
    assert outcome["said"] == [
        "mine, exact_match,own, document 2: filter own: ZeroDivisionError: division by zero"
    ]


def test_the_first_value_that_a_function_fails_with():
    def no_sevens(values: list[int]) -> float:
        return 1 / (7 not in values)

    for place in range(20):
        values = [1] * place + [7] + [1] * (19 - place)
        assert first_failing(no_sevens, values) == place


@pytest.mark.parametrize("metric", ["mcc", "f1"])
def test_scores_are_lm_evals_and_nothing_is_resampled(metric, tmp_path, monkeypatch):
    """lm-eval's 100,000 resamples take minutes.

    They run in processes that inherit the command's handler of SIGTERM.
    """
    rows = [{"question": "q" * i, "choices": ["a", "bb"], "answer": i % 2} for i in range(9)]
    monkeypatch.setattr(
        lm_eval.api.metrics, "bootstrap_stderr", lambda *_, **__: pytest.fail("resampled")
    )
    yaml = CHOICES + f"metric_list: [{{metric: {metric}}}, {{metric: acc}}]"
    outcome = evaluated(tmp_path, yaml, rows)
    task = load_task(tmp_path, "mine", include_path=str(tmp_path))
    numbers = {"mine": list(range(1, 9))}
    evaluated_by_lm_eval = evaluate(
        lm=Answers([]), task_dict={"tasks": {"mine": task}}, samples=numbers, bootstrap_iters=0
    )
    assert evaluated_by_lm_eval is not None
    expected = evaluated_by_lm_eval["results"]["mine"]
    scores = {key: value for key, value in outcome["scores"].items() if "_stderr" not in key}
    assert scores == {key: expected[key] for key in scores}
    assert outcome["scores"][f"{metric}_stderr,none"] == "N/A"
    assert outcome["scores"]["acc_stderr,none"] == pytest.approx((0.5 * 0.5 / 7) ** 0.5)


# The command

TASK = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
- metric: acc
- metric: brier_score
- {metric: acc_norm, aggregation: !function functions.none}
"""


@pytest.fixture
def overrides(tmp_path) -> list[str]:
    rows = [{"question": f"q{i}?", "choices": ["a", "b"], "answer": i % 2} for i in range(4)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    (tmp_path / "mine.yaml").write_text(TASK.replace("FILE", str(tmp_path / "rows.jsonl")))
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    task = ["task=lm_eval", "task.name=mine", f"task.include_path={tmp_path}"]
    return [*task, f"output_dir={tmp_path / 'out'}", "device=cpu", "offline=true"]


def test_the_command_stores_what_is_known_and_fails_each_time_without_the_model(
    overrides, tmp_path, capsys, loads
):
    messages = []
    for _ in range(2):
        ended = run_command(capsys, "method=roe", "method.n=2", *overrides)
        assert ended.code == 1
        assert "Traceback" not in ended.err
        messages.append(ended.err.splitlines()[-2:])
    assert loads == ["tiny"], "once, by the first command"
    assert messages[0] == messages[1]
    assert (
        "A metric could not be computed: mine, acc_norm,none, document 0: ValueError: no score"
        in messages[0][-2]
    )
    assert "results.json, and all answers are stored" in messages[0][-1]
    folders = sorted((tmp_path / "out" / "runs").iterdir())
    assert len(folders) == 2, "the base model's, and that of RoE"
    for folder in folders:
        content = json.loads((folder / "results.json").read_text())
        scores = content["results"]["mine"]
        block = content["moe_lab"]
        assert scores["acc_norm,none"] is None
        assert 0 < scores["brier_score,none"] < 2
        assert block["schema_version"] == 1
        assert block["status"] == "failed"
        assert [
            (failure["task"], failure["metric"], failure["document"]) for failure in block["failed"]
        ] == [("mine", "acc_norm,none", 0)]
        assert set(block["intervals"]["mine"]) == {"acc,none", "brier_score,none"}
        reason = json.loads((folder / "status.json").read_text())["reason"]
        assert "mine, acc_norm,none, document 0" in reason
    paired = content["moe_lab"]["paired"]["mine"]["brier_score,none"]
    assert paired["n"] == 4
    assert paired["p_randomization"] is not None or paired["equal"]
    ended = run_command(
        capsys, "mode=compare", f"a={folders[0]}", f"b={folders[1]}", f"output_dir={tmp_path}"
    )
    assert ended.code == 0
    assert "brier_score,none" in ended.out
    assert "Not compared: acc_norm,none of mine" in ended.out
