"""The rehearsal of paper scale.

Broken by a subset that leaves an option out, a cell that is cut too little or repeated, and a plan
of another number of tokens than a run reads.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.rehearse import Planned, cuts, rehearsed, subset
from moe_lab.config.compose import compose_cell
from moe_lab.models.memory import ModelPool
from moe_lab.runs.config import to_config
from moe_lab.runs.experiments.composing import Composed, compose_experiments
from moe_lab.tasks.loading import task_cache

ROOT = Path(__file__).parents[2]


def planned(*overrides: str) -> Planned:
    experiment = SimpleNamespace(name="roe/figure6")
    composed: Any = SimpleNamespace(experiment=experiment, cells=[], study=None)
    return Planned(composed, compose_cell(list(overrides), []))


def options_of(cells: list[Planned]) -> set:
    options = set()
    for cell in cells:
        options |= cell.options
    return options


def test_a_subset_has_every_option():
    cells = []
    for model in ("olmoe", "mixtral"):
        for task in ("gsm8k", "svamp", "piqa"):
            for method in ("base", "roe"):
                cells.append(planned(f"model={model}", f"task={task}", f"method={method}"))
    chosen = subset(cells)
    assert options_of(chosen) == options_of(cells)
    assert len(chosen) == 3, "as many as there are tasks"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["task=mmlu"], "task.name=[mmlu_abstract_algebra,mmlu_anatomy,mmlu_virology]"),
        (["method=roe", "method.cache=none"], "max_length=264"),
        (["tuning=uniform", "tuning.step=0.025", "tuning.max_temperature=2"], "tuning.step=2"),
        (["method=pretrain", "model=olmoe-base"], "method.steps=2"),
        (["samples=[7,8,9]"], "samples=[0,1]"),
    ],
)
def test_cells_are_cut(overrides, expected):
    cell = compose_cell(overrides, [])
    cutting_overrides = cuts(cell, to_config(cell))
    assert expected in cutting_overrides
    to_config(compose_cell([*overrides, *cutting_overrides], []))


CELLS = {
    "base": "roe/figure3",
    "c2r": "routing/methods",
    "c3po": "c3po/table2",
    "finetune-freeze": "moe_bench/table9",
    "icl": "c3po/table1",
    "prefix-tuning": "c3po/table1",
    "pretrain": "moe_bench/figure2",
    "roe": "roe/figure3",
    "scmoe": "routing/methods",
    "soft-prompt": "c3po/table1",
    "steer": "routing/methods",
    "top-k": "routing/methods",
    "top-p": "routing/methods",
}
"""The methods of all experiments, and an experiment with a cell of each."""


def methods() -> list[Any]:
    """All in the fast tier but scmoe, whose cell takes long."""
    parameters = []
    for name in CELLS:
        marks = [pytest.mark.slow] if name == "scmoe" else []
        parameters.append(pytest.param(name, marks=marks))
    return parameters


def tiny_cell(composed: Composed, method: str) -> Any:
    """The first cell of the tiny model and a method."""
    for cell, _ in composed.cells:
        if cell.values["model"]["name"] == "tiny" and cell.values["method"]["name"] == method:
            return cell
    raise AssertionError(f"no cell of {method}")


@pytest.mark.parametrize("method", methods())
def test_a_cell_of_each_method_reads_what_was_planned(method, tmp_path):
    """The cell is cut as in a rehearsal; its model is the embedded one, which needs no hub."""
    overrides = [f"experiment={CELLS[method]}", "scale=tiny", f"output_dir={tmp_path}"]
    base = compose_cell(overrides, [])
    [composed] = compose_experiments(to_config(base), base)
    cell = tiny_cell(composed, method)
    with task_cache():
        row = rehearsed(Planned(composed, cell), ModelPool(), {}, [])
    assert row["state"] == "done", row.get("traceback", row["reason"])
    assert row["planned"] == row["measured"] > 0


@pytest.mark.slow
def test_all_methods_of_the_experiments_are_rehearsed():
    base = compose_cell(["experiment=all", "scale=paper"], [])
    methods_of_experiments = set()
    for composed in compose_experiments(to_config(base), base):
        for cell, _ in composed.cells:
            methods_of_experiments.add(cell.values["method"]["name"])
    assert methods_of_experiments <= CELLS.keys()


@pytest.mark.slow
def test_cells_run_once_and_read_what_was_planned(tmp_path):
    """Of generated rows: RoE that is tuned, and choices. Its models are small."""
    twice = "import sys; from benchmarks.rehearse import main; sys.exit(main() or main())"
    arguments = ["--experiment", "roe/figure6", "--output", str(tmp_path), "--only", "svamp"]
    ended = subprocess.run(
        [sys.executable, "-c", twice, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

    lines = (tmp_path / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    cell, drawing = [json.loads(line) for line in lines]
    assert cell["state"] == "done"
    assert drawing["state"] == "done"
    assert cell["planned"] == cell["measured"] > 0
    for weights in (tmp_path / "hub" / "models").rglob("*.safetensors"):
        assert weights.stat().st_size < 10**8
