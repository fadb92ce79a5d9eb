"""The table of mode=plan: wide in a pipe, in 80 columns on a terminal."""

from __future__ import annotations

import sys
from dataclasses import replace

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.reports.terminal.layout import print_note
from moe_lab.runs.plan import Plan, Row, print_rows
from tests.support.command import run_command

ROW = Row(
    run="a1b2c3d4",
    config=Config(model=ModelConfig(name="olmoe", path="allenai/OLMoE-1B-7B-0924-Instruct")),
    names=["olmoe", "finetune-freeze", "arc_challenge_answer_format", "0"],
    documents=1_172,
    tokens=123_456_789,
    hours=12.3,
    state="interrupted, 1,000 of 4,687 answered",
)


def test_a_pipe_gets_one_line_a_row(capsys):
    print_rows([ROW, replace(ROW, run="00000000")])
    title, *lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if "a1b2c3d4" in line]
    assert "weights=allenai/OLMoE-1B-7B-0924-Instruct" in title and "12.3" in line and "123,456,789" in line


def test_a_terminal_gets_80_columns(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_rows([ROW, ROW])
    print_note("(1) " + "a long reason " * 20)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "weights=allenai/OLMoE-1B-7B-0924-Instruct" in "".join(lines).replace(" ", "")


def test_the_memory_of_the_largest_run_is_said(monkeypatch):
    small, large = (
        replace(ROW, memory=15 * 10**9),
        replace(ROW, memory=95 * 10**9, names=["mixtral", *ROW.names[1:]]),
    )
    assert not [note for note in Plan(rows=[ROW]).notes if "GPU memory" in note]
    [alone] = [note for note in Plan(rows=[small]).notes if "GPU memory" in note]
    assert "at most 15 GB (olmoe finetune-freeze" in alone and "takes 1 of 80 GB" in alone
    *_, memory, advice = Plan(rows=[small, large]).notes
    assert "FSDP" in advice, "the runs of this plan train"
    assert "at most 95 GB (mixtral" in memory and "takes 2 of 80 GB" in memory
    monkeypatch.setattr("moe_lab.runs.plan.gpu_memory", lambda: [141 * 10**9])
    assert "takes 1 of 141 GB" in Plan(rows=[small, large]).notes[-1]


def test_a_key_of_tuning_has_an_effect_if_one_run_of_a_grid_is_tuned(tmp_path, capsys):
    command = f"-m method=roe model=tiny task=toy_text limit=2 output_dir={tmp_path} mode=plan".split()
    planned = run_command(capsys, *command, "tuning=none,uniform", "tuning.step=2")
    assert planned.code == 0, planned.err
    refused = run_command(capsys, *command, "tuning=none", "seed=0,1", "tuning.num_samples=7")
    assert refused.code == 2 and "tuning.num_samples=7" in refused.err
