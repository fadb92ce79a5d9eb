"""Broken by runs of a grid that look the same, and by a p or a mark beside the wrong run.

Broken by a cost beside the wrong run.

Broken by a mean or an interval in the row of another run.

Broken by a profile beside the wrong study, and by a table that is wider than 80 columns.

Breaks if the table or the list of flips shows other numbers than the comparison's, or hides what is left out.

Breaks if a difference stands in another metric's row, or a column without numbers is shown.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy.stats import ttest_1samp

from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports import expert
from moe_lab.reports.expert import expert_table, lost_p_values
from moe_lab.reports.terminal.comparison import SHOWN_FLIPS, flip_lines, print_comparison
from moe_lab.reports.terminal.results import (
    COST_EXPLAINED,
    TWO_FORMS,
    cost_table,
    explained,
    notes,
    print_outcomes,
    print_studies,
    print_summaries,
    run_labels,
    score_table,
    settings,
)
from moe_lab.results.comparisons.comparison import compare
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import NO_COMPARISONS, Family, ScoreTable, SeedGroup
from moe_lab.results.scores import MARKS
from moe_lab.results.significance import holm
from moe_lab.tasks.answer_forms import LETTERS
from tests.support.lm_eval_logs import evaluation, samples_of
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


def test_experts_per_token_are_a_column_where_a_method_reports_them():
    blocks = [results_of("base"), results_of("top-p", top_p={"experts_per_token": 2.345})]
    columns = {column.heading: list(column.cells) for column in cost_table(blocks, ["", ""]).columns}
    assert columns["experts"] == ["", "2.35"] and "experts" in COST_EXPLAINED
    assert "experts" not in cost_table(blocks[:1], [""]).headings


FULL = {"run_id": "full", "results": {"t": {"acc,none": 0.44}}}


def group(method: str, mean: float, file: Path, **block: Any) -> SeedGroup:
    """Two seeds of a method, 0.02 apart, base at 0.4 and full fine-tuning at 0.44."""

    def paired(value: float, other: float) -> dict[str, Any]:
        return {"t": {"acc,none": {"difference": value - other, "ci95": None, "p_mcnemar": None}}}

    results = [
        results_of(
            method,
            value,
            run_id=f"{method}-{seed}",
            partial=True,
            baseline={"run_id": "b", "results": {"t": {"acc,none": 0.4}}},
            paired=paired(value, 0.4),
            compared={"full_fine_tuning": FULL | {"paired": paired(value, 0.44)}},
            **block,
        )
        for seed, value in enumerate((mean - 0.01, mean + 0.01))
    ]
    score = {
        "ci95_documents": [mean - 0.1, mean + 0.1],
        "difference_ci95_documents": [mean - 0.5, mean - 0.3],
    }
    score |= {
        "difference_p_documents": 0.03,
        "compared": {"full_fine_tuning": {"difference_p_documents": 0.2}},
    }
    summary = {"seeds": [0, 1], "overrides": [f"method={method}"], "scores": {"t": {"acc,none": score}}}
    return SeedGroup(results, summary | block.pop("more", {}), file)


def test_each_group_has_its_means(tmp_path, capsys):
    groups = [group("roe", 0.5, tmp_path / "a", untuned=True), group("finetune-freeze", 0.6, tmp_path / "b")]
    table = ScoreTable.of(groups)
    print_summaries(groups, [tmp_path / "a", tmp_path / "b"], table.family)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "Over seeds: model=tiny task=t metric=acc,none PARTIAL" in lines
    first = next(line for line in lines if line.startswith("roe"))
    for text in (" 2 ", " 0.5000 ", " +0.1000 ", "(untuned)", "[0.4000, 0.6000]", "[+0.0000, +0.2000]"):
        assert text in first
    assert "Over seeds, compared with full fine tuning: model=tiny task=t metric=acc,none" in " ".join(lines)
    frozen = [line.split() for line in lines if line.startswith("finetune-")]
    assert [("+0.2000" in line, "+0.1600" in line) for line in frozen] == [(True, False), (False, True)]


def test_both_tests_and_the_family_of_two_decide(tmp_path):
    """With two seeds p is the larger of both: Student's over seeds here. Holm multiplies the smallest by two."""
    groups = [group("roe", 0.5, tmp_path / "a"), group("finetune-freeze", 0.6, tmp_path / "b")]
    scores = ScoreTable.of(groups).scores
    expected = [
        max(0.03, ttest_1samp([0.09, 0.11], 0).pvalue),
        max(0.03, ttest_1samp([0.19, 0.21], 0).pvalue),
    ]
    assert [score.p for score in scores[:2]] == pytest.approx(expected)
    assert scores[1].p_holm == pytest.approx(2 * expected[1])
    assert [(score.question, score.family) for score in scores] == [("scores", 2)] * 2 + [("controls", 2)] * 2


def test_a_study_of_many_layers_takes_the_width_of_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    profile = {
        "model": "olmoe",
        "task": "gsm8k",
        "metric": "perplexity",
        "split": "train",
        "samples": {"gsm8k": [1, 2, 3]},
        "trials": 100,
        "trial": 42,
        "untuned_score": 2.5,
        "score": 1234.5678,
        "temperature": [0.12] * 48,
    }
    asked = {"task": "arc_challenge", "samples": {"arc_challenge": list(range(1040))}}
    for name, more in (("a", {}), ("b", asked)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "best.yaml").write_text(yaml.safe_dump(profile | more))
    print_studies([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("model=olmoe ") and lines[1] == "metric=perplexity (train)"
    shown = lines[: lines.index(str(tmp_path / "a" / "best.yaml"))]
    assert max(map(len, shown)) <= 80
    text = " ".join(shown)
    assert text.count("0.12") == 2 * 48 and "1235" in text.replace(",", "")
    assert next(line.split()[:2] for line in shown if "gsm8k" in line) == ["gsm8k", "3"]
    assert "1,040" in text


def test_what_is_left_out_and_settings_and_notes_are_said(tmp_path, capsys):
    a = evaluation(
        tmp_path,
        "a",
        {"t": samples_of(acc=[0.0] * 14 + [1.0]), "u": samples_of(acc=[1.0])},
        config={"model_args": "pretrained=x"},
    )
    b = replace(evaluation(tmp_path, "b", {"t": samples_of(acc=[1.0] * 14 + [0.0])}), marks=("untuned",))
    comparison = compare([a, b])
    print_comparison(comparison)
    printed = capsys.readouterr().out
    assert f"a: model, {a.file}\n   pretrained=x\n" in printed and MARKS["untuned"] in printed
    assert f"b: model, {b.file}\n   untuned\n" in printed
    assert "b minus a" in printed and "Only in a, and not compared: u." in printed
    assert flip_lines(comparison) == [
        f"t acc,none, wrong in a and right in b: {', '.join(map(str, range(SHOWN_FLIPS)))} and 4 more",
        "t acc,none, right in a and wrong in b: 14",
    ]


def loss(difference: float, base: float = 0.5, p: float | None = 0.25) -> dict[str, Any]:
    one = {"base": base, "changed": base - difference, "difference": difference, "ci95": [0.0, 0.1]}
    return {"acc,none": one | {"runs": [{"p_mcnemar": p}]}}


def family_of(metrics: dict[str, Any], *others: float) -> Family:
    """The families of a run's losses and of scores."""
    own = lost_p_values(StoredMetrics(metrics), "r")
    return Family.of({(str(n), "t", "acc,none", "base"): p for n, p in enumerate(others)}, own)


def lines(metrics: dict[str, Any], *others: float) -> list[expert.Line]:
    return expert.lines(StoredMetrics(metrics), "r", family_of(metrics, *others))


METRICS: dict[str, Any] = {
    "differences": {},
    "metric": "acc,none",
    "load_balance": {
        "all": {"value": 3.5, "ci95": [3.4, 3.6], "maximum": 4.0},
        "prefill": None,
        "decode": None,
    },
    "collaboration": {"all": {"value": 2.5, "ci95": None, "maximum": 3.0}, "prefill": None, "decode": None},
    "capacity": {"least": {"tasks": {"t": loss(0.02)}}, "most": {"tasks": {"t": loss(0.3), "u": loss(0.4)}}},
    "specialization": None,
}


def test_differences_to_base_stand_in_their_own_rows():
    difference = {
        "load_balance/all": {"difference": 0.1, "ci95": [0.05, 0.15]},
        "capacity/most/tasks/u/acc,none": {"difference": -0.2, "ci95": None},
    }
    found = {
        (metric, of): rest for metric, of, *rest in lines(METRICS | {"differences": {"baseline": difference}})
    }
    assert found["Load Balance, bits", "all tokens"][-2:] == ["+0.1000", "[+0.0500, +0.1500]"]
    assert found["Capacity, acc,none", "most activated expert masked, u"][-2:] == ["-0.2000", ""]
    assert found["Capacity, acc,none", "most activated expert masked, t"][-2:] == ["", ""]
    assert len(found) == 5


def test_a_loss_is_corrected_for_the_losses_alone():
    """Broken by scores that change the p of a loss, and by losses that change the p of scores."""
    two = {"least": {"tasks": {"t": loss(0.3, p=0.03)}}, "most": {"tasks": {"t": loss(0.3, p=0.5)}}}
    found = METRICS | {"capacity": two}
    alone, beside = ([line[5] for line in lines(found, *others) if line[5]] for others in ((), (0.5, 0.001)))
    assert alone == beside == ["0.0600", "0.5000"]
    table = expert_table([("m", "roe", "", "t", *line) for line in lines(found)], family_of(found))
    assert "p (Holm)" in table.headings
    several = family_of(found, 0.5, 0.001)
    assert "(scores: 2, expert metrics: 2)" in expert.explained(several)["p (Holm)"]
    assert several.corrected["1", "t", "acc,none", "base"] == 0.002
