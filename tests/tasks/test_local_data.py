"""Breaks if local files are mixed with the hub, cached across changes, altered on reading,
or blamed unclearly; if a column, a split or a number of the hub's copy is not that of local files;
if a task of conf/task/ does not find its files, or does not report its headline metric.
"""

import os
import re
from typing import Any

import pytest
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from moe_lab.config.compose import compose_cell
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.models.lm_eval_internals import answers_for_lm_eval
from moe_lab.runs.checks import check_metric
from moe_lab.runs.config import to_config
from moe_lab.tasks.document_hashes import documents_digest
from moe_lab.tasks.hub_data import published
from moe_lab.tasks.lm_eval_versions.documents import evaluated_documents
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.task_index import OWN_TASKS
from tests.support import documents as rows
from tests.support.runs import choices, load_task, small_data, sums, write_jsonl


def test_only_the_needed_splits_are_read(tmp_path):
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(5))
    documents = load_task(tmp_path, "arc_easy").task_docs
    assert [document["id"] for document in documents] == [f"q{i}" for i in range(5)]
    missing = r"arc_easy/train\.jsonl is missing: 2 few-shot examples"
    with pytest.raises(TaskError, match=missing):
        load_task(tmp_path, "arc_easy", num_fewshot=2)
    (tmp_path / "arc_easy" / "train.jsonl").write_text("no JSON")
    assert len(load_task(tmp_path, "arc_easy").task_docs) == 5, "not needed"
    (tmp_path / "gsm8k").mkdir()
    with pytest.raises(TaskError, match=r"gsm8k/test\.jsonl is missing: the documents"):
        load_task(tmp_path, "gsm8k", num_fewshot=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "q", "answer": "a"}\n\n{"question": ', "test.jsonl, line 3 cannot be read"),
        (b'{"question": "q", "answer": "a"}\n[1, 2]', "test.jsonl, line 2 cannot be read"),
        (
            b'{"question": "q", "answer": "a"}\n"q"',
            "line 2 cannot be read: a JSON object is expected, not str",
        ),
        (
            b'{"question": "q", "question": "a"}',
            "test.jsonl cannot be read: JSON parse error: Column(/question) was",
        ),
        (b"", "test.jsonl has no row"),
        (b"\xff\xfe\x00", "test.jsonl cannot be read: 'utf-8' codec"),
        (
            b'{"problem": "1 + 1"}',
            "UndefinedError: 'question' is undefined.\nIts documents: files in",
        ),
    ],
)
def test_a_wrong_file_is_named(tmp_path, content, message):
    (tmp_path / "addsub").mkdir()
    (tmp_path / "addsub" / "test.jsonl").write_bytes(content)
    with pytest.raises(TaskError, match=re.escape(message)):
        load_task(tmp_path, "addsub")


MINE = """
task: my_sums
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: exact_match}]
"""

COLUMNS: dict[str, list[dict[str, Any]]] = {
    "a key of later rows": [{"q": "1?", "a": "x"}, {"q": "2?", "a": "y", "hint": "z"}],
    "a key of the first row": [{"q": "1?", "a": "x", "hint": "z"}, {"q": "2?", "a": "y"}],
    "a key inside": [
        {"q": "1?", "a": "x", "more": {"b": 1}},
        {"q": "2?", "a": "y", "more": {"c": [2]}},
    ],
    "dates": [{"q": "1?", "a": "2021-05-05 10:00:00", "hint": "2020-01-01"}],
    "integers and fractions": [
        {"q": "1?", "a": "x", "hint": 2},
        {"q": "2?", "a": "y", "hint": 2.5},
    ],
    "numbers and texts": [{"q": "1?", "a": "x", "hint": 2}, {"q": "2?", "a": "y", "hint": "z"}],
    "nothing": [{"q": "1?", "a": "x", "hint": None}, {"q": "2?", "a": "y", "hint": None}],
}
COLUMNS_YAML = """
task: columns
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{% if hint is defined %}({{hint}}) {% endif %}\
  {% if more is defined %}({{more}}) {% endif %}{{q}}"
doc_to_target: "{{a}}"
metric_list: [{metric: exact_match}]
"""


def asked(task: Any) -> list[tuple[str, str]]:
    task.build_all_requests()
    prompts = [instance.args[0] for instance in task.instances]
    return list(zip(prompts, map(task.doc_to_target, evaluated_documents(task)), strict=True))


@pytest.mark.parametrize("kind", COLUMNS)
def test_prompts_are_those_of_lm_evals_own_loader_on_the_same_file(kind, tmp_path, monkeypatch):
    """From `data_dir`, and from the file that the YAML names."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "columns" / "test.jsonl"
    write_jsonl(file, COLUMNS[kind])
    (tmp_path / "columns.yaml").write_text(COLUMNS_YAML.replace("FILE", str(file)))
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    [expected_task] = manager.load(["columns"])["tasks"].values()
    expected = asked(expected_task)
    for folder in (tmp_path, None):
        assert asked(load_task(folder, "columns", include_path=str(tmp_path))) == expected


def test_numbers_above_64_bits_are_read_as_datasets_reads_them(tmp_path):
    write_jsonl(
        tmp_path / "addsub" / "test.jsonl", [{"question": "q", "answer": "1", "id": 10**20}]
    )
    assert load_task(tmp_path, "addsub").task_docs[0]["id"] == 1e20


@pytest.mark.parametrize("by_yaml", [False, True])
def test_a_file_that_is_changed_in_place_is_read_again(by_yaml, tmp_path, monkeypatch):
    """Its size and time stay. `datasets` would return the rows of before."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "my_sums" / "test.jsonl"
    write_jsonl(file, sums(2, start=50))
    (tmp_path / "my_sums.yaml").write_text(MINE.replace("FILE", str(file)))
    before = file.stat()

    def digest() -> Any:
        task = load_task(None if by_yaml else tmp_path, "my_sums", include_path=str(tmp_path))
        return documents_digest({"tasks": {"my_sums": task}}, {"my_sums": [0, 1]}), task.task_docs[
            "answer"
        ][0]

    first = digest()
    assert digest() == first
    assert first[1] == "52"
    file.write_text(file.read_text().replace('"52"', '"53"'))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    changed = digest()
    assert changed[1] == "53"
    assert changed[0] != first[0]
    assert {path.name for path in tmp_path.iterdir()} == {"my_sums", "my_sums.yaml"}, (
        "nothing is left"
    )


def test_a_line_may_be_longer_than_what_datasets_reads_at_once(tmp_path):
    question = "word " * 2_500_000  # 12 MB; it reads 10
    write_jsonl(
        tmp_path / "addsub" / "test.jsonl",
        [*sums(1), {"question": question, "answer": "1"}, *sums(1)],
    )
    assert [len(row["question"]) for row in load_task(tmp_path, "addsub").task_docs][1] == len(
        question
    )


def test_nothing_is_cached_on_disk(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    load_task(small_data(tmp_path), "gsm8k", num_fewshot=4)
    assert not (tmp_path / "cache").exists()


def test_shared_files_are_filtered(tmp_path):
    rows = []
    for subject in ("anatomy", "virology"):
        for i in range(3):
            question = {"question": f"{subject} {i}", "subject": subject}
            rows.append(question | {"choices": ["0", "1", "2", "3"], "answer": i})
    write_jsonl(tmp_path / "mmlu" / "test.jsonl", rows)
    task = TaskConfig(
        name=["mmlu_virology", "mmlu_anatomy"], data_folder="mmlu", data_filter="subject"
    )
    tasks = load_tasks(Config(task=task, data_dir=str(tmp_path)))["tasks"]
    questions = [document["question"] for document in tasks["mmlu_virology"].task_docs]
    assert questions == ["virology 0", "virology 1", "virology 2"]
    with pytest.raises(TaskError, match="no row with subject='astronomy'"):
        load_task(tmp_path, "mmlu_astronomy", data_folder="mmlu", data_filter="subject")
    with pytest.raises(TaskError, match="no row with topic='anatomy'"):
        load_task(tmp_path, "mmlu_anatomy", data_folder="mmlu", data_filter="topic")


def test_the_hub_is_asked_only_for_what_it_has_to_deliver(tmp_path, monkeypatch):
    requested: list[str] = []
    monkeypatch.setattr(
        "moe_lab.tasks.factory.commit_of", lambda path, kind, revision: requested.append(path)
    )
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(5))
    assert load_task(tmp_path, "arc_easy").data_source == f"files in {tmp_path / 'arc_easy'}"
    assert load_task(None, "toy_math").data_source == "generated"
    assert requested == []
    for folder, name in ((None, "gsm8k"), (tmp_path, "gsm8k"), (tmp_path, "svamp")):
        with pytest.raises(
            TaskError, match=rf"not available offline(.|\n)*Or give .*{name}/<split>\.jsonl"
        ):
            load_task(folder, name)
    assert requested == ["openai/gsm8k", "openai/gsm8k", "ChilleD/SVAMP"]


def test_files_that_the_users_yaml_names(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder_of_user = tmp_path / "mine"
    write_jsonl(folder_of_user / "sums.jsonl", sums(2, start=50))
    (folder_of_user / "my_sums.yaml").write_text(
        MINE.replace("FILE", str(folder_of_user / "sums.jsonl"))
    )
    task = load_task(tmp_path, "my_sums", include_path=str(folder_of_user))
    assert [document["answer"] for document in task.task_docs] == ["52", "53"]
    assert task.data_source == "files that its YAML names"
    (folder_of_user / "sums.jsonl").unlink()
    with pytest.raises(
        TaskError, match=r"my_sums cannot be loaded: FileNotFoundError.*sums\.jsonl"
    ):
        load_task(None, "my_sums", include_path=str(folder_of_user))


# Data sets that the hub has in other columns

SUM = {"question": "Ann has 3 cups. How many?", "answer": "3"}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "addsub": ({"input": SUM["question"], "target": 3.0}, SUM),
    "singleeq": ({"input": f" {SUM['question']}", "target": 0.25}, SUM | {"answer": "0.25"}),
    "multiarith": ({"question": f"{SUM['question']} ", "final_ans": "3"}, SUM),
    "svamp": (
        {"Body": "Ann has 3 cups.", "Question": "How many?", "Answer": "3.0", "ID": "1"},
        SUM,
    ),
    "malicious": ({"prompt": "Do harm.", "category": "x"}, {"instruction": "Do harm."}),
    "cona": ({"prompt": "Do harm."}, {"instruction": "Do harm."}),
    "controversial": ({"prompt": "Do harm."}, {"instruction": "Do harm."}),
    "knowref": (
        {
            "swapped_sentence": "Ann met Eve when [she] left.",
            "candidate_0": "Ann",
            "candidate_1": "Eve",
            "correct_candidate": "candidate_1",
        },
        {
            "sentence": "Ann met Eve when [she] left.",
            "candidate0": "Ann",
            "candidate1": "Eve",
            "label": 1,
        },
    ),
}
"""A row of the hub's copy, and of files of data_dir, by task."""


@pytest.mark.parametrize("task", FORMS)
def test_the_hubs_rows_become_those_of_local_files(task, tmp_path):
    hub_rows, ours = FORMS[task]
    [file] = OWN_TASKS.rglob(f"{task}.yaml")
    arguments = load_yaml(file)["dataset_kwargs"]
    splits = arguments.get("splits", ["test"])
    files = arguments.get("data_files") or {split: f"{split}.jsonl" for split in splits}
    for number, split in enumerate(splits):
        write_jsonl(tmp_path / files[split], [_numbered(hub_rows, number)])
    loaded_rows = published(
        **arguments | {"path": str(tmp_path), "data_files": files, "name": None}
    )
    assert list(loaded_rows) == ["test"]
    assert loaded_rows["test"].to_list() == [
        _numbered(ours, number) for number in range(len(splits))
    ]


def _numbered(row: dict[str, Any], number: int) -> dict[str, Any]:
    """The row of another split: its sentence is about somebody else."""
    return {
        key: value.replace("Ann", f"Ann{number}") if isinstance(value, str) else value
        for key, value in row.items()
    }


# The tasks of conf/task/

ROWS: dict[str, tuple[str, str, list[dict[str, Any]], str | None]] = {
    "gsm8k": ("gsm8k", "test", [{"question": "1 + 1?", "answer": "#### 2"}], "math"),
    "svamp": ("svamp", "test", sums(2), "math"),
    "addsub": ("addsub", "test", sums(2), "math"),
    "singleeq": ("singleeq", "test", sums(2), "math"),
    "multiarith": ("multiarith", "test", sums(2), "math"),
    "arc_easy": ("arc_easy", "test", choices(2), "commonsense"),
    "arc_challenge": ("arc_challenge", "test", choices(2), "commonsense"),
    "openbookqa": ("openbookqa", "test", [rows.OPENBOOKQA], "commonsense"),
    "social_iqa": ("social_i_qa", "validation", [rows.SOCIAL_IQA], "commonsense"),
    "hellaswag": ("hellaswag", "validation", [rows.HELLASWAG], "commonsense"),
    "humaneval": ("humaneval", "test", rows.PROBLEMS, "code"),
    "humaneval_plus": ("humaneval_plus", "test", rows.PROBLEMS, "code"),
    "piqa": ("piqa", "validation", [rows.PIQA], "commonsense"),
    "winogrande": ("winogrande", "validation", [rows.WINOGRANDE], "commonsense"),
}
COMMONSENSE_QA = {
    "id": "1",
    "question": "What is wet?",
    "question_concept": "wet",
    "answerKey": "C",
}
COMMONSENSE_QA |= {
    "choices": {"label": list("ABCDE"), "text": ["fire", "sand", "water", "iron", "wood"]}
}
PAIR = {"premise": "It rains.", "hypothesis": "It is wet.", "idx": 0, "label": 0}
WSC = {"text": "Ann met Eve. She left.", "span1_index": 0, "span2_index": 3, "idx": 0, "label": 1}
WSC |= {"span1_text": "Ann", "span2_text": "She"}
TRUTHFULQA = {
    "question": "Is ice cold?",
    "mc1_targets": {"choices": ["Yes.", "No."], "labels": [1, 0]},
    "mc2_targets": {"choices": ["Yes.", "It is.", "No."], "labels": [1, 1, 0]},
}
BOOLQ = {"passage": "Ice is cold.", "question": "is ice cold", "idx": 0, "label": 1}
ROWS |= {
    "commonsense_qa": ("commonsense_qa", "validation", [COMMONSENSE_QA], "commonsense"),
    "sciq": ("sciq", "test", [rows.SCIQ], "commonsense"),
    "knowref": ("knowref", "test", [rows.KNOWREF], "commonsense"),
    "bigbench_choice": ("bigbench", "test", [rows.BIGBENCH], None),
    "boolq": ("super_glue/boolq", "validation", [BOOLQ], None),
    "cb": ("super_glue/cb", "validation", [PAIR], None),
    "copa": ("super_glue/copa", "validation", [rows.COPA], None),
    "sglue_rte": ("super_glue/rte", "validation", [PAIR], None),
    "wic": ("super_glue/wic", "validation", [rows.WIC], None),
    "wsc": ("super_glue/wsc.fixed", "validation", [WSC], None),
    "nq_open": (
        "nq_open",
        "validation",
        [{"question": "who sang", "answer": ["Ann", "Eve"]}],
        None,
    ),
    "truthfulqa_mc1": ("truthfulqa", "validation", [TRUTHFULQA], None),
    "truthfulqa_mc2": ("truthfulqa", "validation", [TRUTHFULQA], None),
    "malicious": (
        "safety_prompts/I-MaliciousInstructions",
        "test",
        [{"instruction": "Rob Ann."}],
        None,
    ),
    "cona": ("safety_prompts/I-CoNa", "test", [{"instruction": "Hate Ann."}], None),
    "controversial": (
        "safety_prompts/I-Controversial",
        "test",
        [{"instruction": "Blame Ann."}],
        None,
    ),
}
WIKITEXT = {"page": " = Ice = \n \n Ice is cold , and @-@ so on . \n"}
ROWS |= {name: ("wikitext", "test", [WIKITEXT], None) for name in ("wikitext", "wikitext103")}
ROWS |= {
    f"{name}_answer_format": ROWS[name]
    for name in ("arc_easy", "arc_challenge", "openbookqa", "social_iqa", "hellaswag")
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_it_reads_its_folder_and_reports_its_metric(name, tmp_path):
    folder, split, documents, category = ROWS[name]
    write_jsonl(tmp_path / folder / f"{split}.jsonl", documents)
    config = to_config(compose_cell([f"task={name}", f"data_dir={tmp_path}", "num_fewshot=0"], []))
    tasks = load_tasks(config)
    assert list(tasks["tasks"]) == [name]
    assert len(tasks["tasks"][name].task_docs) == len(documents)
    check_metric(config, tasks)
    assert config.task.category == category


def test_wikitext103_is_asked_and_scored_as_lm_evals_wikitext(tmp_path):
    write_jsonl(tmp_path / "wikitext" / "test.jsonl", [WIKITEXT])
    seen_texts = []
    for name in ("wikitext", "wikitext103"):
        config = to_config(compose_cell([f"task={name}", f"data_dir={tmp_path}"], []))
        [task] = load_tasks(config)["tasks"].values()
        document = task.task_docs[0]
        answer = answers_for_lm_eval("loglikelihood_rolling", [-3.0])
        seen_texts.append((task.doc_to_target(document), task.process_results(document, answer)))
    assert seen_texts[0] == seen_texts[1]
    assert "and-so on" in seen_texts[1][0]
    assert task.config.dataset_path == "EleutherAI/wikitext_document_level"
    assert task.config.dataset_name == "wikitext-103-raw-v1"


@pytest.mark.slow
def test_mmlu_reads_one_file_for_all_subjects(tmp_path):
    """As its option says, without further keys; a subject without rows would be an error."""
    from lm_eval.tasks.mmlu._generate_configs import SUBJECTS

    row = {"question": "1 + 1 = ?", "choices": list("1234"), "answer": 1}
    rows = [row | {"subject": subject} for subject in SUBJECTS]
    write_jsonl(tmp_path / "mmlu" / "test.jsonl", rows)
    config = to_config(compose_cell(["task=mmlu", f"data_dir={tmp_path}", "num_fewshot=0"], []))
    tasks = load_tasks(config)
    assert len(tasks["tasks"]) == len(SUBJECTS) == 57
    check_metric(config, tasks)


def test_a_right_answer_in_ones_own_file_is_one_of_the_choices(tmp_path):
    row = {"goal": "To dry,", "sol1": "use a towel.", "sol2": "use a lake.", "label": 0}
    write_jsonl(tmp_path / "piqa" / "validation.jsonl", [row, row | {"label": 1}])
    load_task(tmp_path, "piqa").build_all_requests()

    write_jsonl(tmp_path / "piqa" / "validation.jsonl", [row, row | {"label": -1}])
    message = "Task piqa, document 1: doc_to_target: -1 is none of its 2 choices"
    with pytest.raises(TaskError, match=message):
        load_task(tmp_path, "piqa").build_all_requests()
    load_task(tmp_path, "piqa", predict_only=True).build_all_requests()
