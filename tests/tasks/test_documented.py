"""Breaks if a task of conf/task/ does not find its files, or does not report its headline metric."""

from typing import Any

import pytest

from moe_lab.config.compose import compose_cell
from moe_lab.runs.config import to_config
from moe_lab.runs.prepare import check_metric
from moe_lab.tasks.loading import load_tasks
from tests.support import documents as rows
from tests.support.runs import choices, sums, write_jsonl

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
    "choices": {"label": list("ABCDE"), "text": ["fire", "sand", "water", "iron", "wood"]},
    "answerKey": "C",
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
    "nq_open": ("nq_open", "validation", [{"question": "who sang", "answer": ["Ann", "Eve"]}], None),
    "truthfulqa_mc1": ("truthfulqa", "validation", [TRUTHFULQA], None),
    "truthfulqa_mc2": ("truthfulqa", "validation", [TRUTHFULQA], None),
    "malicious": ("safety_prompts/I-MaliciousInstructions", "test", [{"instruction": "Rob Ann."}], None),
    "cona": ("safety_prompts/I-CoNa", "test", [{"instruction": "Hate Ann."}], None),
    "controversial": ("safety_prompts/I-Controversial", "test", [{"instruction": "Blame Ann."}], None),
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
    assert list(tasks["tasks"]) == [name] and len(tasks["tasks"][name].task_docs) == len(documents)
    check_metric(config, tasks)
    assert config.task.category == category


def test_wikitext103_is_asked_and_scored_as_lm_evals_wikitext(tmp_path):
    write_jsonl(tmp_path / "wikitext" / "test.jsonl", [WIKITEXT])
    found = []
    for name in ("wikitext", "wikitext103"):
        config = to_config(compose_cell([f"task={name}", f"data_dir={tmp_path}"], []))
        [task] = load_tasks(config)["tasks"].values()
        document = task.task_docs[0]
        found.append((task.doc_to_target(document), task.process_results(document, [-3.0])))
    assert found[0] == found[1] and "and-so on" in found[1][0]
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
