"""Broken by runs of a grid that look the same, and by a p or a mark beside the wrong run."""

from __future__ import annotations

from typing import Any

import pytest

from moe_lab.reports.terminal.results import (
    TWO_FORMS,
    explained,
    notes,
    print_outcomes,
    run_labels,
    score_table,
    settings,
)
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import NO_COMPARISONS, ScoreTable, SeedGroup
from moe_lab.results.significance import holm
from moe_lab.tasks.answer_forms import LETTERS
from tests.support.stored_results import results_of


def test_settings_tell_the_runs_of_a_grid_apart():
    typed = [["method=roe", "method.n=4", "limit=5"], ["method=roe", "method.n=8", "limit=5"]]
    assert settings(typed, [0, 0]) == ["method.n=4", "method.n=8"]
    assert settings([["limit=5"], ["limit=5"]], [0, 1]) == ["seed=0", "seed=1"]
    assert settings([["limit=5"]], [0]) == [""]


def test_a_methods_keys_are_shown_if_another_method_is_in_the_grid():
    """`method.n=4` of RoE and of C3PO are two different things: a row without it looks like the method's default."""
    typed = [
        ["method=base", "limit=5"],
        *(["method=" + name, "method.n=4", "limit=5"] for name in ("roe", "c3po")),
    ]
    assert settings(typed, [None, 0, 0]) == ["", "method.n=4", "method.n=4"]
    assert settings(typed[:2], [None, 0]) == ["", ""]


def test_the_parts_of_a_group_are_left_to_the_page():
    paired = {
        "acc,none": {
            "n": 2,
            "difference": 0.5,
            "ci95": [-0.1, 0.9],
            "p_mcnemar": 1.0,
            "to_right": 1,
            "to_wrong": 0,
        }
    }
    run = results_of(
        task={"name": "g", "tasks": ["a", "b"], "metric": "acc,none"},
        samples={"a": [0, 1], "b": [0, 1]},
        paired={"a": paired, "b": paired},
        intervals={},
    )
    run.content["results"] = {name: {"acc,none": 0.5} for name in ("g", "a", "b")}
    run.content.update(groups={"g": {}}, group_subtasks={"g": ["a", "b"], "a": [], "b": []})
    table = score_table([run], [""], ScoreTable.of([SeedGroup([run])]).family)
    assert "task=g" in table.title and all(len(column.cells) == 1 for column in table.columns)
    assert "Parts of groups are on the page: 2 tasks and groups, without tests of their own." in notes(
        [run], []
    )


def test_runs_that_ask_in_letters_are_told_from_those_that_ask_by_text():
    def asked(task, choices):
        run = results_of(task={"name": task, "tasks": [task], "metric": "acc,none"}, samples={task: [0]})
        run.content["configs"] = {task: {"doc_to_choice": choices}}
        return run

    text, letters, other = asked("a", "{{choices}}"), asked("a", LETTERS), asked("b", ["A", "B"])
    assert run_labels([text, letters, other]) == ["task.answer=text", "task.answer=letters", ""]
    assert run_labels([letters, other]) == ["", ""]
    assert TWO_FORMS in notes([text, letters], []) and TWO_FORMS not in notes([letters, other], [])


@pytest.mark.parametrize("p_values", ([0.01], [0.01, 0.04, 0.5]), ids=("one", "several"))
def test_several_comparisons_are_corrected(p_values):
    base = results_of("base")
    runs = [
        results_of(
            run_id=str(n), paired={"t": {"acc,none": {"difference": 0.1, "ci95": [0.0, 0.2], "p_mcnemar": p}}}
        )
        for n, p in enumerate(p_values)
    ]
    family = ScoreTable.of([SeedGroup([run]) for run in runs]).family
    table = score_table([base, *runs], ["", *(f"n={n}" for n in range(len(runs)))], family)
    columns = {column.heading: column.cells for column in table.columns}
    shown = {name: cells for name, cells in columns.items() if name.startswith("p")}
    heading = "p (Holm)" if len(p_values) > 1 else "p"
    assert shown == {heading: ["", *(f"{p:.4f}" for p in holm(p_values))]}
    legend = explained("base", family)[heading]
    assert legend.startswith("McNemar's exact test for 0/1 scores, else a paired permutation test")
    assert ("same question (scores: 3)" in legend) == (len(p_values) > 1)


def test_marks_of_all_runs_stand_in_the_title_and_others_beside_their_run(capsys):
    more = {"partial": True, "overrides": [], "seed": 0}
    base, roe = results_of("base", **more), results_of(**more, untuned=True)
    print_outcomes([base, roe], ["A footnote."], NO_COMPARISONS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Results: model=tiny task=t metric=acc,none n=4 PARTIAL"
    assert any(line.startswith("roe") and "(untuned)" in line for line in lines)
    assert lines[-1] == "A footnote."


def test_titles_say_where_lower_is_better():
    """With a metric of which higher is better in the same table they name the others."""
    pair = {"difference": 0.1, "ci95": [0.0, 0.2], "p_permutation": 0.5}
    block = {"results": {"t": {"bits_per_byte,none": 1.5}}, "paired": {"t": {"bits_per_byte,none": pair}}}
    loss = of_metric("bits_per_byte", higher_is_better=False, compared={"calibration": block})
    accuracy = of_metric("acc", higher_is_better=True)
    titles = [
        ([loss], "metric=bits_per_byte,none n=4 (lower is better)"),
        ([accuracy], "metric=acc,none n=4"),
        ([loss, accuracy], "n=4 (lower is better: bits_per_byte,none)"),
    ]
    for runs, end in titles:
        title = score_table(runs, [""] * len(runs), NO_COMPARISONS).title
        assert title == f"Results: model=tiny method=roe task=t {end}"
    compared = score_table([loss], [""], NO_COMPARISONS, "calibration")
    assert compared.title.startswith("Compared with calibration: ")
    assert compared.title.endswith("metric=bits_per_byte,none (lower is better)")


def of_metric(name: str, higher_is_better: bool, **changes: Any) -> RunResult:
    metric = f"{name},none"
    block = results_of(task={"name": "t", "tasks": ["t"], "metric": metric}, **changes)["moe_lab"]
    return RunResult(
        {
            "results": {"t": {metric: 1.5}},
            "higher_is_better": {"t": {name: higher_is_better}},
            "moe_lab": block,
        }
    )
