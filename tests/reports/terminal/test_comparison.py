"""Breaks if the table or the list of flips shows other numbers than the comparison's, or hides what is left out."""

from __future__ import annotations

from dataclasses import replace

from moe_lab.reports.terminal.comparison import SHOWN_FLIPS, comparison_table, flip_lines, print_comparison
from moe_lab.results.comparisons.comparison import compare
from moe_lab.results.scores import MARKS
from tests.support.lm_eval_logs import evaluation, samples_of


def test_two_evaluations(tmp_path, capsys):
    a = evaluation(tmp_path, "a", {"t": samples_of(acc=[0.0] * 14 + [1.0]), "u": samples_of(acc=[1.0])})
    b = evaluation(tmp_path, "b", {"t": samples_of(acc=[1.0] * 14 + [0.0])})
    comparison = compare([a, b])
    print_comparison(comparison)
    printed = capsys.readouterr().out
    title, _, *table = printed.splitlines()[2:]
    assert title == "Compared with a: task=t metric=acc,none n=15"
    row = table[2].split()
    assert row[:3] == ["0.0667", "0.9333", "+0.8667"] and row[-4:] == ["0.0010", "+14", "-1", "better"]
    assert f"a: model, {a.file}" in printed
    assert "b minus a" in printed and "randomization" not in printed
    assert "Only in a, and not compared: u." in printed
    assert flip_lines(comparison) == [
        f"t acc,none, wrong in a and right in b: {', '.join(map(str, range(SHOWN_FLIPS)))} and 4 more",
        "t acc,none, right in a and wrong in b: 14",
    ]


def test_settings_and_marks_stand_below_the_file(tmp_path, capsys):
    a = evaluation(tmp_path, "a", {"t": samples_of(acc=[0.0])}, config={"model_args": "pretrained=x"})
    b = evaluation(tmp_path, "b", {"t": samples_of(acc=[1.0])})
    print_comparison(compare([a, replace(b, marks=("untuned",))]))
    printed = capsys.readouterr().out
    assert f"a: model, {a.file}\n   pretrained=x\n" in printed
    assert f"b: model, {b.file}\n   untuned\n" in printed
    assert MARKS["untuned"] in printed


def test_several_evaluations_are_named_in_each_row(tmp_path):
    values = {"a": [0.5, 0.1], "b1": [0.5, 0.2], "b2": [0.9, 0.2]}
    evaluations = [evaluation(tmp_path, key, {"t": samples_of(f1=each)}) for key, each in values.items()]
    table = comparison_table(compare(evaluations))
    columns = {column.heading: column.cells for column in table.columns}
    assert columns["with"] == ["b1", "b2"]
    assert columns["other"] == ["0.3500", "0.5500"]
    assert "p (Holm)" in columns and "p" not in columns
    assert "flips" not in columns, "no score is a right or a wrong"
    assert columns["significant"] == ["no", "no"]
