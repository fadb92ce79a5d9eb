"""Data sets that the hub has in other columns. Broken by a column, a split or a number that is not that of local files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from moe_lab.tasks.factory import OWN_TASKS
from moe_lab.tasks.hub_data import published
from tests.support.runs import write_jsonl

SUM = {"question": "Ann has 3 cups. How many?", "answer": "3"}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "addsub": ({"input": SUM["question"], "target": 3.0}, SUM),
    "singleeq": ({"input": f" {SUM['question']}", "target": 0.25}, SUM | {"answer": "0.25"}),
    "multiarith": ({"question": f"{SUM['question']} ", "final_ans": "3"}, SUM),
    "svamp": ({"Body": "Ann has 3 cups.", "Question": "How many?", "Answer": "3.0", "ID": "1"}, SUM),
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
        {"sentence": "Ann met Eve when [she] left.", "candidate0": "Ann", "candidate1": "Eve", "label": 1},
    ),
}
"""A row of the hub's copy, and of files of data_dir, by task."""


@pytest.mark.parametrize("task", FORMS)
def test_the_hubs_rows_become_those_of_local_files(task: str, tmp_path: Path) -> None:
    theirs, ours = FORMS[task]
    [file] = OWN_TASKS.rglob(f"{task}.yaml")
    given = load_yaml(file)["dataset_kwargs"]
    splits = given.get("splits", ["test"])
    files = given.get("data_files") or {split: f"{split}.jsonl" for split in splits}
    for number, split in enumerate(splits):
        write_jsonl(tmp_path / files[split], [_numbered(theirs, number)])
    found = published(**given | {"path": str(tmp_path), "data_files": files, "name": None})
    assert list(found) == ["test"]
    assert found["test"].to_list() == [_numbered(ours, number) for number in range(len(splits))]


def _numbered(row: dict[str, Any], number: int) -> dict[str, Any]:
    """The row of another split: its sentence is about somebody else."""
    return {
        key: value.replace("Ann", f"Ann{number}") if isinstance(value, str) else value
        for key, value in row.items()
    }
