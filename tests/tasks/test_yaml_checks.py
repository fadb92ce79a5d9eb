"""Breaks if a fault of a task's own YAML is found after weights are loaded, or if its
message lacks task, file or line."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moe_lab.errors import TaskError
from moe_lab.tasks import yaml_checks
from moe_lab.tasks.yaml_checks import YamlChecks
from tests.support.command import run_command
from tests.support.runs import load_task, write_jsonl

CHOICES = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: [red, green]
doc_to_target: answer
metric_list: [{metric: acc}]
"""
TEXTS = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{text}}"
metric_list: [{metric: exact_match, ignore_case: true}]
"""
ROWS = [
    {"question": "Moss?", "answer": 1, "text": "x", "n": "'b'"},
    {"question": "A cherry?", "answer": 0, "n": "?"},
]


def mine(folder: Path, yaml: str) -> str:
    """The task's YAML in a folder; returns the folder."""
    write_jsonl(folder / "rows.jsonl", ROWS)
    (folder / "mine.yaml").write_text(yaml.replace("FILE", str(folder / "rows.jsonl")))
    (folder / "functions.py").write_text("def right(document):\n    return document['answer']\n")
    (folder / "wrong.py").write_text("def right(document:\n    pass\n")
    return str(folder)


@dataclass(frozen=True)
class Fault:
    """The lines replace those of the same key in the YAML. The message names this line."""

    yaml: str
    lines: str
    line: int
    message: str


FAULTS = {
    "aggregation": Fault(
        CHOICES,
        "metric_list: [{metric: acc, aggregation: medan}]",
        line=9,
        message="aggregation=medan of metric acc is unknown. Did you mean 'median'?",
    ),
    "no aggregation": Fault(
        CHOICES,
        "process_results: !function functions.right\nmetric_list:\n  - metric: own",
        line=11,
        message="metric own needs an aggregation, for example mean.",
    ),
    "metric": Fault(
        CHOICES,
        "metric_list: [{metric: ac, aggregation: mean}]",
        line=9,
        message="metric ac is unknown. Did you mean 'acc'?",
    ),
    "metric of texts": Fault(
        CHOICES,
        "metric_list: [{metric: bleu}]",
        line=9,
        message="lm-eval does not compute metric bleu for",
    ),
    "metric of choices": Fault(
        TEXTS,
        "metric_list: [{metric: acc}]",
        line=8,
        message="lm-eval does not compute metric acc for",
    ),
    "key of a metric": Fault(
        CHOICES,
        "metric_list:\n- metric: acc\n  agregation: mean",
        line=11,
        message="no key agregation. Did you mean",
    ),
    "argument of a metric": Fault(
        TEXTS,
        "metric_list: [{metric: exact_match, ignore_cas: 1}]",
        line=8,
        message="no key ignore_cas. Did you",
    ),
    "metric without a name": Fault(
        CHOICES, "metric_list: [acc]", line=9, message="'acc' is no metric. Write {metric: acc"
    ),
    "filter": Fault(
        TEXTS,
        "filter_list: [{name: f, filter: [{function: regx}]}]",
        line=9,
        message="filter function=regx is unknown. Did you mean 'regex'?",
    ),
    "argument of a filter": Fault(
        TEXTS,
        (
            "filter_list:\n- name: f\n  filter:\n  - {function: regex, regex_patern: x}\n"
            "  - {function: take_first}"
        ),
        line=12,
        message=(
            "filter f: RegexFilter does not take these arguments: RegexFilter.__init__() got "
            "an unexpected"
        ),
    ),
    "pattern of a filter": Fault(
        TEXTS,
        "filter_list: [{name: f, filter: [{function: regex, regex_pattern: '('}]}]",
        line=9,
        message="filter f: RegexFilter does not take these arguments: missing )",
    ),
    "filter without a function": Fault(
        TEXTS,
        "filter_list: [{name: f, filter: [{take_first: 1}]}]",
        line=9,
        message="has no function",
    ),
    "function": Fault(
        CHOICES,
        "doc_to_target: !function functions.left",
        line=8,
        message="!function functions.left: AttributeError: Module",
    ),
    "module": Fault(
        CHOICES,
        "doc_to_target: !function absent.left",
        line=8,
        message="!function absent.left: ImportError: Cannot import",
    ),
    "syntax of a module": Fault(
        CHOICES,
        "doc_to_target: !function wrong.right",
        line=8,
        message="SyntaxError: '(' was never closed",
    ),
    "function that is a text": Fault(
        CHOICES,
        "process_docs: functions.right",
        line=10,
        message="process_docs=functions.right is no function",
    ),
    "output type": Fault(
        CHOICES,
        "output_type: choice",
        line=5,
        message="output_type=choice is unknown. Did you mean 'multiple_choice'?",
    ),
    "template": Fault(
        CHOICES,
        'doc_to_text: "{{question"',
        line=6,
        message="doc_to_text is no jinja template: unexpected end",
    ),
    "variable": Fault(
        CHOICES,
        'doc_to_text: "{{qestion}}"',
        line=6,
        message="UndefinedError: 'qestion' is undefined",
    ),
    "key": Fault(
        CHOICES,
        "doc_to_txt: question",
        line=10,
        message="lm-eval knows no key doc_to_txt. Did you mean 'doc_to_text'?",
    ),
    "key of examples": Fault(
        CHOICES,
        "fewshot_config: {smapler: first_n}",
        line=10,
        message="no key smapler. Did you mean 'sampler'?",
    ),
    "sampler": Fault(
        CHOICES,
        "fewshot_config: {sampler: first}",
        line=10,
        message="sampler=first is unknown. Samplers: default, first_n.",
    ),
    "repeats": Fault(
        TEXTS, "repeats: 0", line=9, message="repeats=0: must be an integer of at least 1."
    ),
    "num_fewshot": Fault(
        CHOICES,
        "num_fewshot: two",
        line=10,
        message="num_fewshot=two: must be an integer of at least 0.",
    ),
}


def with_lines(yaml: str, lines: str) -> str:
    """A YAML whose lines of the same keys are replaced, or with the lines at its end."""
    key = re.match(r"\w+:", lines)
    kept_lines = yaml.splitlines()
    for place, line in enumerate(kept_lines):
        if key and line.startswith(key[0]):
            return "\n".join([*kept_lines[:place], lines, *kept_lines[place + 1 :]]) + "\n"
    if "metric_list:" in lines:
        kept_lines = [line for line in kept_lines if not line.startswith("metric_list:")]
    return "\n".join([*kept_lines, *lines.splitlines()]) + "\n"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_by_task_file_and_line(fault, tmp_path, monkeypatch):
    # it takes seconds to import
    monkeypatch.setattr(yaml_checks, "_evaluate_has", lambda metric: False)
    text = with_lines(fault.yaml, fault.lines)
    folder = mine(tmp_path, text)
    with pytest.raises(TaskError) as raised:
        load_task(None, "mine", include_path=folder)
    message = str(raised.value)
    assert fault.message in message
    assert "Task mine" in message
    assert f"{tmp_path}/mine.yaml, line {fault.line}" in message
    assert len(message.splitlines()) <= 3
    assert raised.value.exit_code == 2


INNER = """\
group: both
task:
- mine
- task: inner
  output_type: multiple_choice
  metric_list: [{metric: acc, aggregation: avrage}]
"""


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            "group: both\ntask:\n- mine\n- absent\n",
            "Task both, FILE, line 4: absent is no task, group or tag",
        ),
        (INNER, "Task both::inner, FILE, line 6: aggregation=avrage of metric acc is unknown"),
        (
            (
                "group: both\ntask: [mine]\naggregate_metric_list:\n"
                "- {metric: acc, aggregation: median}\n"
            ),
            (
                "Task both, FILE, line 4: {'metric': 'acc', 'aggregation': 'median'}: a group "
                "takes the mean"
            ),
        ),
        (
            "group: both\ntask: [mine]\naggregate_metric_list:\n- {metric: ac}\n",
            "Task both, FILE, line 4: no task of the group reports ac.",
        ),
    ],
)
def test_faults_of_a_group(group, message, tmp_path, small_index):
    mine(tmp_path, CHOICES)
    (tmp_path / "both.yaml").write_text(group)
    with pytest.raises(
        TaskError, match=re.escape(message.replace("FILE", str(tmp_path / "both.yaml")))
    ):
        load_task(None, "both", include_path=str(tmp_path))


def test_the_line_may_be_in_an_included_file(tmp_path):
    mine(tmp_path, CHOICES.replace("acc}", "acc, aggregation: avrage}"))
    (tmp_path / "mine.yaml").rename(tmp_path / "common.yaml.inc")
    (tmp_path / "mine.yaml").write_text("include: common.yaml.inc\ntask: mine\n")
    with pytest.raises(
        TaskError, match=r"Task mine, \S+/common\.yaml\.inc, line 9: aggregation=avrage"
    ):
        load_task(None, "mine", include_path=str(tmp_path))


def test_the_correct_files_load(tmp_path):
    for yaml in (CHOICES, TEXTS):
        assert len(load_task(None, "mine", include_path=mine(tmp_path, yaml)).task_docs) == 2


BRACKET = "task: NAME\ndataset_kwargs: {data_files: {test: x}\ntest_split: test\n"


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"a.yaml": BRACKET.replace("NAME", "broken")}, "broken"),
        ({"a.yaml": BRACKET.replace("NAME", "gsm8k")}, "gsm8k"),
        ({"a.yaml": "task: broken\ninclude: b.inc\n", "b.inc": "x: 1\n" + BRACKET}, "broken"),
        ({"a.yaml": BRACKET, "b.yaml": "group: all\ntask: [toy_math]\n"}, "all"),
        ({"a.yaml": BRACKET, "b.yaml": CHOICES + "tag: colours\n"}, "colours"),
    ],
)
def test_a_yaml_that_does_not_parse_is_named(files, name, tmp_path, small_index):
    """The task is not left out in silence: neither a task with the name of one of lm-eval's,
    nor a task of a group or a tag."""
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    file, line = ("b.inc", 4) if "b.inc" in files else ("a.yaml", 3)
    with pytest.raises(TaskError) as raised:
        load_task(None, name, include_path=str(tmp_path))
    assert (
        f"task.name={name}: a YAML cannot be read.\n{tmp_path}/{file}, line {line}: did not find"
        in str(raised.value)
    )


def test_another_broken_file_does_not_matter(tmp_path):
    folder = mine(tmp_path, CHOICES)
    (tmp_path / "a.yaml").write_text(BRACKET)
    assert load_task(None, "mine", include_path=folder).task_name == "mine"
    assert load_task(None, "toy_math", include_path=folder).task_name == "toy_math"


@pytest.mark.parametrize(
    ("yaml", "lines", "message"),
    [
        (CHOICES, 'doc_to_text: "{{5 // (answer)}}"', "document 1: doc_to_text: ZeroDivisionError"),
        (
            TEXTS,
            'doc_to_target: "{{5 // (answer)}}"',
            "document 1: doc_to_target: ZeroDivisionError",
        ),
        (CHOICES, "doc_to_choice: \"['a', {{n}}]\"", "document 1: doc_to_choice: "),
        (
            CHOICES,
            'doc_to_target: "{{2 - answer}}"',
            "document 1: doc_to_target: 2 is none of its 2 choices, which are counted from 0.",
        ),
        (
            CHOICES,
            "doc_to_target: \"{{['cherry', 'green'][answer]}}\"",
            "document 1: doc_to_target: 'cherry' is none of its 2 choices",
        ),
        (
            CHOICES,
            'doc_to_target: "{{[answer, 2 - answer]}}"',
            "document 1: doc_to_target: 2 is none of its 2 choices",
        ),
    ],
)
def test_a_document_without_a_prompt_ends_the_command_before_weights_load(
    yaml, lines, message, tmp_path, capsys, loads
):
    folder = mine(tmp_path, with_lines(yaml, lines))
    task = [
        "task=lm_eval",
        "task.name=mine",
        f"task.include_path={folder}",
        f"output_dir={tmp_path / 'out'}",
    ]
    ended = run_command(capsys, "method=base", *task)
    assert ended.code == 2
    assert f"Error: Task mine, {message}" in ended.err
    assert "Traceback" not in ended.err
    assert loads == []


@pytest.mark.slow
def test_a_metric_that_the_package_evaluate_does_not_have(tmp_path):
    yaml = with_lines(CHOICES, "metric_list: [{metric: ac, aggregation: mean}]")
    with pytest.raises(TaskError, match="line 9: metric ac is unknown"):
        load_task(None, "mine", include_path=mine(tmp_path, yaml))


def test_lm_evals_own_tasks_may_have_settings_that_it_ignores(tmp_path):
    """AfriMMLU gives its accuracy an `average`."""
    config: dict[str, Any] = {
        "task": "t",
        "output_type": "multiple_choice",
        "metric_list": [{"metric": "bleu"}],
    }
    file = tmp_path / "t.yaml"
    file.write_text("task: t\n")
    YamlChecks("t", file, strict=False).check_settings(config)
    with pytest.raises(TaskError, match="does not compute metric bleu"):
        YamlChecks("t", file, strict=True).check_settings(config)
