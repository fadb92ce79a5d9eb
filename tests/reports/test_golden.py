"""Every view of stored results, as text: breaks if a number, a note or a row of any view changes.

Three tables of experiments, one with a failed cell, a grid of 2x2 with two seeds, and one
comparison. After an intended change MOE_LAB_GOLDEN=write writes the files in golden/ anew.
Review their differences before you commit them.
"""

import os
from pathlib import Path

import pytest

import moe_lab.runs.attempts
from moe_lab.config import catalog
from moe_lab.errors import ResultsError
from tests.support.command import install, run_command
from tests.support.golden_runs import GoldenRuns, normal, views
from tests.support.lm_eval_logs import samples_of, write_log

GOLDEN = Path(__file__).parent / "golden"
HEADLINE = """\
# Accuracy
title: "Accuracy"
source: "A paper"
scales:
  tiny:
    grid: {model: [tiny], task: [toy_math, toy_choice], method: [base, roe, c3po]}
    set: [seeds=2]
rows: [method]
columns: [task]
average: task
paper:
  - {cell: {task: toy_math, method: roe}, value: 55.5, unit: percent, place: "Table 9", mark: "(?)"}
  - {cell: {task: gsm8k, method: base}, value: 0.5, place: "Section 3"}
"""
NEIGHBOURS = """\
# Neighbours
title: "Neighbours"
source: "A paper"
scales:
  tiny: {grid: {method: [c3po], method.optimizer: [ngd, oracle], task: [toy_choice]}}
rows: [method.optimizer]
columns: [task]
paper: []
"""
EXPERTS = """\
# Expert metrics
title: "Expert metrics"
source: "A paper"
scales:
  tiny: {grid: {method: [base, roe], task: [toy_math]}, set: [metrics=expert]}
rows: [method]
columns: [measure]
metric: {Accuracy: headline, Load Balance: expert.load_balance, Capacity: expert.capacity}
paper: []
"""
COMMANDS = {
    "tables": ["experiment=accuracy,neighbours,experts"],
    "grid": ["-m", "model=tiny", "method=base,roe", "task=toy_math,toy_choice", "seeds=2"],
    "compare": ["mode=compare", "a=mine", "b=theirs,better"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_views_are_the_golden_ones(name, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "experiments"
    folder.mkdir()
    for experiment_name, text in {
        "accuracy": HEADLINE,
        "neighbours": NEIGHBOURS,
        "experts": EXPERTS,
    }.items():
        (folder / f"{experiment_name}.yaml").write_text(text)
    for log_name, right in (("mine", 3), ("theirs", 5), ("better", 14)):
        accuracies = [float(i * 7 % 15 < right) for i in range(15)]
        write_log(tmp_path / log_name, {"t": samples_of(acc=accuracies)})
    resources = catalog.resource_folder

    def resources_of_test(kind: str) -> Path:
        if kind == "experiments":
            return folder
        return resources(kind)

    monkeypatch.setattr(catalog, "resource_folder", resources_of_test)
    monkeypatch.setattr(moe_lab.runs.attempts, "write_run_figures", lambda result, kinds: [])
    monkeypatch.chdir(tmp_path)
    runs = install(monkeypatch, GoldenRuns())
    runs.errors["c3po toy_math"] = ResultsError("The disk is full.")
    ended = run_command(capsys, *COMMANDS[name])
    output = tmp_path / "outputs"
    terminal = f"exit code {ended.code}\n{ended.err}{ended.out}"
    texts = {"terminal.txt": terminal} | dict(views(output))
    compare_or_write(GOLDEN / name, {file: normal(text, output) for file, text in texts.items()})


def compare_or_write(folder: Path, texts: dict[str, str]) -> None:
    if os.environ.get("MOE_LAB_GOLDEN") == "write":
        for file in folder.rglob("*"):
            if file.is_file():
                file.unlink()
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    stored = {
        str(file.relative_to(folder)): file.read_text(encoding="utf-8")
        for file in folder.rglob("*")
        if file.is_file()
    }
    assert texts.keys() == stored.keys()
    for name, text in texts.items():
        assert text == stored[name], (
            f"{name} differs. If this is intended, MOE_LAB_GOLDEN=write updates it."
        )
