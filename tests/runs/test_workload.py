"""Planned tokens of large tasks. Broken by a shared beginning that counts once for each sampled document, and by a plan of
other settings that is taken for this one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import moe_lab
from moe_lab.tasks import requests

TASK = """\
task: shared
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{beginning} {{{{question}}}}"
doc_to_choice: [one, two]
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    rows = [{"question": f"number {'very ' * (i % 4)}{i}"} for i in range(120)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    text = TASK.format(data=tmp_path / "test.jsonl", beginning="ben has 3 apples . " * 20)
    (tmp_path / "tasks" / "shared.yaml").write_text(text)
    return [
        "model=tiny",
        "task=lm_eval",
        "task.name=shared",
        f"task.include_path={tmp_path / 'tasks'}",
        f"output_dir={tmp_path}",
    ]


def planned(*command: str) -> list[int]:
    return [int(tokens) for tokens in moe_lab.plan(command).frame()["tokens"]]


@pytest.mark.slow
def test_a_beginning_that_all_prompts_share_counts_once(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = planned("method=roe", "method.n=4", "seeds=1", *command)
    monkeypatch.setattr(requests, "SAMPLED", 1000)
    requests._workloads.clear()
    whole = planned("method=roe", "method.n=4", "seeds=1", *command)
    assert ours == pytest.approx(whole, rel=0.1)


def test_each_length_has_its_own_plan(command: list[str]) -> None:
    cells = ["-m", "method=base", "max_length=32,256", "limit=4", *command]
    short, long = planned(*cells)
    assert [short] == planned("method=base", "max_length=32", "limit=4", *command) and short < long
