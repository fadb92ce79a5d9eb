"""What a command prints, and its score table.

Breaks if a note or a number is next to another run or not explained, a profile next to the wrong
study; if a table on a narrow terminal cuts a number or leaves out a column without saying so,
and if a missing number looks like a zero; if a single seed or a part of a group has a verdict,
or a difference is significant without evidence, or in the wrong direction.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_lab.methods import get_method
from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.columns import (
    Column,
    count,
    fixed,
    names,
    numbers,
    print_table,
    seconds,
    texts,
)
from moe_lab.reports.comparison import print_comparison
from moe_lab.reports.expert import ExpertLine, Row, expert_columns, expert_lines
from moe_lab.reports.labels import run_labels, settings
from moe_lab.reports.score_line import ScoreLine
from moe_lab.reports.scores import CommandTable
from moe_lab.reports.terminal import NOT_COMPARED, TWO_FORMS, notes, print_scores, print_studies
from moe_lab.reports.verdicts import by_outcome, conclusion, has_verdict, sentence
from moe_lab.results.comparisons.comparison import compare
from moe_lab.results.family import Family
from moe_lab.results.marks import MARKS
from moe_lab.results.measured import interval_text, number
from moe_lab.results.model import RunResult
from moe_lab.results.score import (
    BETTER,
    BOTH,
    DIFFERENT,
    EQUAL_RUNS,
    MCNEMAR,
    NOT_SIGNIFICANT,
    WORSE,
    Score,
)
from moe_lab.results.score_table import SeedGroup, family_of
from moe_lab.results.seed_summary import SeedSummary
from moe_lab.results.statistics import VERSION
from moe_lab.tasks.letters import LETTERS
from tests.support.command import run_command
from tests.support.lm_eval_logs import evaluation, samples_of
from tests.support.seed_scores import seed_difference, seed_score
from tests.support.stored_results import changed, results_of
from tests.support.stored_traces import c3po_results


def test_notes_are_beside_their_run_and_explained_once(capsys):
    base = results_of("base", partial=True)
    roe = results_of(partial=True, untuned=True)
    print_scores(CommandTable([base, roe]), ["A footnote."])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Results: model=tiny task=t metric=acc,none n=4"
    ends = [line.split()[-2:] for line in lines if line.startswith(("base", "roe"))]
    assert ends == [["s", "PARTIAL"], ["PARTIAL", "untuned"]]
    assert lines[-3:] == [MARKS["PARTIAL"], MARKS["untuned"], "A footnote."]


def test_titles_say_where_lower_is_better(capsys):
    """With a metric of which higher is better in the same table they name the others."""

    def of_metric(name: str, higher_is_better: bool) -> RunResult:
        metric = f"{name},none"
        block = results_of(task={"name": "t", "tasks": ["t"], "metric": metric})["moe_lab"]
        better = {"t": {name: higher_is_better}}
        return RunResult(
            {"results": {"t": {metric: 1.5}}, "higher_is_better": better, "moe_lab": block}
        )

    loss = of_metric("bits_per_byte", False)
    accuracy = of_metric("acc", True)
    titles = {
        "Results (lower is better): ": [loss],
        "Results: ": [accuracy],
        "Results (lower is better: bits_per_byte,none): ": [loss, accuracy],
    }
    for title, runs in titles.items():
        print_scores(CommandTable(runs))
        assert capsys.readouterr().out.startswith(title)
    assert notes(CommandTable([loss, loss])) == [NOT_COMPARED]
    assert notes(CommandTable([loss, accuracy])) == []


def run_of_group() -> RunResult:
    """A run on the group g of the tasks a and b, with the same difference
    to its base model in both."""
    paired = {
        "n": 2,
        "difference": 0.5,
        "ci95": [-0.1, 0.9],
        "p_mcnemar": 1.0,
        "to_right": 1,
        "to_wrong": 0,
    }
    run = results_of(
        task={"name": "g", "tasks": ["a", "b"], "metric": "acc,none"},
        samples={"a": [0, 1], "b": [0, 1]},
        paired={"a": {"acc,none": paired}, "b": {"acc,none": paired}},
        intervals={},
    )
    scores = {name: {"acc,none": 0.5} for name in ("g", "a", "b")}
    subtasks = {"g": ["a", "b"], "a": [], "b": []}
    return changed(run, results=scores, groups={"g": {}}, group_subtasks=subtasks)


def test_the_tasks_of_a_group_are_only_on_the_page():
    run = run_of_group()
    table = CommandTable([run], family=family_of([SeedGroup([run])]))
    assert [line.score.task for line in table.shown] == ["g"]
    note = "Parts of groups are on the page: 2 tasks and groups, without tests of their own."
    assert note in notes(table)


def test_a_note_says_that_runs_answered_in_letters_and_in_text():
    in_text = run_of_group()
    in_letters = changed(in_text, configs={"a": {"doc_to_choice": LETTERS}})
    assert TWO_FORMS in notes(CommandTable([in_text, in_letters]))
    assert TWO_FORMS not in notes(CommandTable([in_text]))


def test_studies_have_a_row_each(tmp_path, capsys):
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
    other_profile = profile | {
        "task": "arc_challenge",
        "samples": {"arc_challenge": list(range(1040))},
        "at_bound": ["layer_3"],
    }
    for name, content in (("a", profile), ("b", other_profile)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "best.yaml").write_text(yaml.safe_dump(content))
    print_studies([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("model=olmoe metric=perplexity (train)")
    [first] = [line.split() for line in lines if line.startswith("gsm8k")]
    [second] = [line.split() for line in lines if line.startswith("arc")]
    assert first == ["gsm8k", "3", "100", "42", "2.5000", "1235", *["0.12"] * 48]
    assert second[:2] == ["arc_challenge", "1,040"]
    assert second[6] == "layer_3"
    assert str(tmp_path / "a" / "best.yaml") in lines


def test_what_is_left_out_and_settings_and_notes_are_said(tmp_path, capsys):
    a = evaluation(
        tmp_path,
        "a",
        {"t": samples_of(acc=[0.0] * 14 + [1.0]), "u": samples_of(acc=[1.0])},
        config={"model_args": "pretrained=x"},
    )
    b = replace(
        evaluation(tmp_path, "b", {"t": samples_of(acc=[1.0] * 14 + [0.0])}), marks=("untuned",)
    )
    comparison = compare([a, b])
    print_comparison(comparison)
    printed = capsys.readouterr().out
    assert f"a: model, {a.file}\n   pretrained=x\n" in printed
    assert MARKS["untuned"] in printed
    assert f"b: model, {b.file}\n   untuned\n" in printed
    assert "b on t is better than a: acc,none +0.8667" in printed
    assert "Only in a, and not compared: u." in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "line_count, command",
    [
        (60, "method=base task=toy_math limit=2"),
        (100, "-m method=roe,top-p task=toy_choice,toy_math limit=4"),
        (100, "method=roe task=toy_choice limit=4 seeds=3"),
        (100, "-m method=roe,scmoe task=toy_text limit=4 task.metric=bits_per_byte,none"),
    ],
)
def test_a_command_says_little_beside_its_table(line_count, command, tmp_path, capsys):
    ended = run_command(capsys, *command.split(), f"output_dir={tmp_path}")
    table, _, below = ended.out.partition("\n\n")[2].partition("\n\n")
    assert ended.code == 0
    assert table.count("\n") >= 2
    words = [word for word in below.split() if str(tmp_path) not in word]
    assert len(words) <= line_count, below


# Expert metrics


def loss(difference: float, base: float = 0.5, p: float | None = 0.25) -> dict[str, Any]:
    loss_metric = {
        "base": base,
        "changed": base - difference,
        "difference": difference,
        "ci95": [0.0, 0.1],
    }
    return {"acc,none": loss_metric | {"runs": [{"p_mcnemar": p}]}}


METRICS: dict[str, Any] = {
    "differences": {},
    "metric": "acc,none",
    "load_balance": {
        "all": {"value": 3.5, "ci95": [3.4, 3.6], "maximum": 4.0},
        "prefill": None,
        "decode": None,
    },
    "collaboration": {
        "all": {"value": 2.5, "ci95": None, "maximum": 3.0},
        "prefill": None,
        "decode": None,
    },
    "capacity": {
        "least": {"tasks": {"t": loss(0.02)}},
        "most": {"tasks": {"t": loss(0.3), "u": loss(0.4)}},
    },
    "specialization": None,
}


def families(metrics: dict[str, Any], *other_p_values: float) -> Family:
    """The families of a run's losses and of scores."""
    p_values = {line.comparison(results_of()): line.p for line in lines(metrics) if line.task}
    return Family.of(
        {(str(n), "t", "acc,none", "base"): p for n, p in enumerate(other_p_values)} | p_values
    )


def lines(metrics: dict[str, Any]) -> list[ExpertLine]:
    return expert_lines(StoredMetrics(metrics))


def test_differences_to_base_are_in_their_own_rows():
    difference = {
        "load_balance/all": {"difference": 0.1, "ci95": [0.05, 0.15]},
        "capacity/most/tasks/u/acc,none": {"difference": -0.2, "ci95": None},
    }
    metric_lines = lines(METRICS | {"differences": {"baseline": difference}})
    by_row = {(line.label, line.of): line.difference for line in metric_lines}
    assert len(by_row) == 5
    balance = by_row["Load Balance, bits", "all tokens"]
    assert (balance.difference, balance.interval) == (0.1, (0.05, 0.15))
    capacity = [
        by_row["Capacity, acc,none", f"most activated expert masked, {task}"] for task in "tu"
    ]
    assert [(capacity_line.difference, capacity_line.interval) for capacity_line in capacity] == [
        (None, None),
        (-0.2, None),
    ]


@pytest.mark.parametrize("other_p_values", [(), (0.5, 0.001)])
def test_a_loss_is_corrected_for_the_losses_alone(other_p_values):
    """Broken by scores that change the p of a loss, and by losses that change the p of scores."""
    two = {"least": {"tasks": {"t": loss(0.3, p=0.03)}}, "most": {"tasks": {"t": loss(0.3, p=0.5)}}}
    metrics = METRICS | {"capacity": two}
    metric_lines = lines(metrics)
    family = families(metrics, *other_p_values)
    columns = expert_columns([Row(results_of(), "", line) for line in metric_lines], family)
    cells = {column.heading: column.cells for column in columns}
    assert [cell for cell in cells["p (Holm)"] if cell] == ["0.0600", "0.5000"]
    assert not other_p_values or family.corrected["1", "t", "acc,none", "base"] == 0.002
    assert not other_p_values or family.note == "scores: 2, expert metrics: 2"


def test_c3po_says_how_many_questions_had_no_neighbour():
    def said(epsilon: float | None, without: int, **changes: Any) -> list[str]:
        c3po = {
            "core_experts": 20,
            "epsilon": epsilon,
            "reference": {"questions_without": without},
        } | changes
        lines = get_method("c3po").footnotes(c3po_results(c3po=c3po)["moe_lab"])
        return [line for line in lines if "had no neighbour" in line]

    assert "epsilon 0.3: 3 of 4 questions had no neighbour" in said(0.3, 3)[0]
    assert said(None, 2)
    assert said(0.5, 0)
    assert not said(None, 0)
    assert not said(0.5, 0, upper_bound=True)


SETTINGS = "method.schedule=router-experts"
METRIC = "exact_match,strict-match"


def columns(rows: int = 2) -> list[Column]:
    return [
        *names(model=["tiny"] * rows, settings=["", SETTINGS][:rows], metric=[METRIC] * rows),
        numbers("n", [1319] * rows, count, name=True),
        numbers("value", [0.59, 0.6][:rows], number),
        numbers("difference", [None, 0.01][:rows], lambda value: number(value, sign=True), spare=1),
        numbers("time", [1.25, 2.5][:rows], seconds, spare=2),
        texts("notes", ["", "untuned"][:rows]),
    ]


@pytest.mark.parametrize(
    "width, left_out", [(80, ""), (67, "time"), (50, "time, difference"), (40, "time, difference")]
)
def test_a_narrow_terminal_has_fewer_columns_and_whole_numbers(
    capsys, monkeypatch, width, left_out
):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table("Results", columns())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text_left_out = " ".join(" ".join(lines).split()).partition("Columns that do not fit: ")[2]
    assert text_left_out == (f"{left_out}." if left_out else "")
    text = "".join(
        line.split()[0] for line in lines if line.startswith(("method", "router", "-experts"))
    )
    assert "0.6000" in "\n".join(lines), "a name is folded, not cut"
    assert width < 50 or text == SETTINGS, "a name is folded, not cut"


WIDE = CommandTable(
    [
        results_of("base", partial=True),
        results_of(
            partial=True,
            untuned=True,
            paired={"t": {"acc,none": {"difference": 0.1, "ci95": [-0.4899, 0.4899]}}},
        ),
    ]
)


@pytest.mark.parametrize("width", [*range(1, 60, 7), 60, 80, 120])
def test_no_number_is_cut_at_any_width(capsys, monkeypatch, width):
    """Below the least width of its numbers a table is a list, in which nothing is left out."""
    monkeypatch.setenv("COLUMNS", str(width))
    for table in (WIDE.columns(), columns()):
        print_table("Results", table)
        out = capsys.readouterr().out
        is_table = "───" in out
        left_out = (
            " ".join(out.split()).partition("Columns that do not fit: ")[2].rstrip(".").split(", ")
        )
        for column in table:
            is_number = column.values is not None
            if is_table and (not is_number or column.heading in left_out):
                continue  # a table folds texts
            for cell in filter(None, column.cells):
                assert cell in out, f"{column.heading} at {width}"
        if width < 20:
            assert not is_table


@pytest.mark.parametrize("value", ["0", "-5", "", "wide", "1.5", "00"])
def test_zero_or_nonsense_is_no_width(value, capsys, monkeypatch):
    print_table("Results", columns())
    expected = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", value)
    print_table("Results", columns())
    assert capsys.readouterr().out == expected
    assert SETTINGS in expected


def test_a_plan_fits_any_width(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "0")
    wide = run_command(capsys, "mode=plan", "method=base", "task=toy_math", "limit=4")
    monkeypatch.setenv("COLUMNS", "20")
    narrow = run_command(capsys, "mode=plan", "method=base", "task=toy_math", "limit=4")
    assert wide.code == narrow.code == 0
    assert "documents  forward tokens left" in wide.out
    assert "\ndocuments: 4\n" in narrow.out


def test_texts_of_numbers():
    assert number(0.5) == "0.5000"
    assert number(-0.25, sign=True) == "-0.2500"
    assert number(123456.7) == "1.235e+05"
    assert number(-0.0000021, sign=True) == "-2.1e-06"
    assert number(0.0, sign=True) == "+0.0000"
    assert interval_text((-0.01, 0.02), sign=True) == "[-0.0100, +0.0200]"
    assert (seconds(1234.56), count(1234.5), fixed(2.345)) == ("1,234.6 s", "1,234", "2.35")
    assert (
        number(None)
        == interval_text(None)
        == number(float("nan"))
        == interval_text((0.5, float("nan")))
        == ""
    )
    assert numbers("n", [None, 0], count).cells == ["", "0"]


def cells(table: CommandTable) -> dict[str, list[str]]:
    """By heading; of two columns with one heading the last, which is the difference's."""
    return {column.heading: list(column.cells) for column in table.columns()}


def test_settings_tell_the_runs_of_a_grid_apart():
    overrides = [
        ["method.temperature=s/s-1/best.yaml"],
        ["method.roe={n:8,temperature:/s/s-2/best.yaml}"],
    ]
    assert settings(overrides, [0, 0]) == [
        "method.temperature=s-1",
        "method.roe={n:8,temperature:s-2}",
    ]
    assert settings([["limit=5"], ["limit=5"]], [0, 1]) == ["seed=0", "seed=1"]
    assert settings([["limit=5"]], [0]) == [""]
    assert settings([["limit=5", "limit=2"], ["limit=2"]], [0, 0]) == ["", ""], (
        "the last one of a key"
    )


def test_a_methods_keys_are_shown_if_another_method_is_in_the_grid():
    """`method.n=4` of RoE and of C3PO are different settings.

    A row without the key would look like the method's default.
    """
    overrides = [["method=base", "limit=5"]]
    overrides += [["method=" + name, "method.n=4", "limit=5"] for name in ("roe", "c3po")]
    assert settings(overrides, [None, 0, 0]) == ["", "method.n=4", "method.n=4"]
    assert settings(overrides[:2], [None, 0]) == ["", ""]


def test_runs_that_ask_in_letters_are_told_from_those_that_ask_by_text():
    def asked(task, choices):
        run = results_of(
            task={"name": task, "tasks": [task], "metric": "acc,none"}, samples={task: [0]}
        )
        return changed(run, configs={task: {"doc_to_choice": choices}})

    text = asked("a", "{{choices}}")
    letters = asked("a", LETTERS)
    other_task = asked("b", ["A", "B"])
    assert run_labels([text, letters, other_task]) == [
        "task.answer=text",
        "task.answer=letters",
        "",
    ]
    assert run_labels([letters, other_task]) == ["", ""]


def test_the_cost_is_that_of_the_run_and_relative_to_its_base():
    cost = {"wall_seconds": 2.0, "tokens_in": 100}
    base = results_of("base", run_id="b", cost=cost)
    roe = results_of(baseline={"run_id": "b"}, cost=cost | {"wall_seconds": 5.0, "tokens_in": 1600})
    paired = {"t": {"acc,none": {"difference": 0.1}}}
    control = {"calibration": {"run_id": "c", "results": {}, "paired": paired}}
    cost_cells = cells(
        CommandTable([base, roe, changed(roe, moe_lab=roe["moe_lab"] | {"compared": control})])
    )
    assert cost_cells["time"] == ["2.0 s", "5.0 s", "5.0 s", ""]
    assert cost_cells["tokens"] == ["100", "1,600", "1,600", ""]
    assert cost_cells["× base"] == ["1.00", "16.00", "16.00", ""], (
        "once a run, not once a comparison"
    )
    assert cost_cells["against"] == ["", "", "", "calibration"]


FULL = {"run_id": "full", "results": {"t": {"acc,none": 0.44}}}


def group(method: str, mean: float, **block: Any) -> SeedGroup:
    """Two seeds of a method, 0.02 apart, base at 0.4 and full fine-tuning at 0.44."""

    def paired(value: float, base_value: float) -> dict[str, Any]:
        return {
            "t": {"acc,none": {"difference": value - base_value, "ci95": None, "p_mcnemar": None}}
        }

    results = [
        results_of(
            method,
            value,
            run_id=f"{method}-{seed}",
            seed=seed,
            baseline={"run_id": "b", "results": {"t": {"acc,none": 0.4}}},
            paired=paired(value, 0.4),
            compared={"full_fine_tuning": FULL | {"paired": paired(value, 0.44)}},
            **block,
        )
        for seed, value in enumerate((mean - 0.01, mean + 0.01))
    ]
    score = seed_score(
        interval=(mean - 0.1, mean + 0.1),
        with_base=seed_difference(p_documents=0.03, interval=(mean - 0.5, mean - 0.3)),
        compared={"full_fine_tuning": seed_difference(p_documents=0.2)},
    )
    summary = SeedSummary(
        first=results[0],
        partial=False,
        versions={},
        statistics=VERSION,
        seeds=[0, 1],
        studies=[],
        run_ids=[],
        scores={"t": {"acc,none": score}},
    )
    return SeedGroup(results, summary, Path("s"))


def test_a_mean_is_shown_in_the_place_of_its_seeds():
    groups = [group("roe", 0.5), group("finetune-freeze", 0.6)]
    runs = [run for seed_group in groups for run in seed_group.results]
    table = CommandTable(runs, groups, family_of(groups))
    shown_cells = cells(table)
    assert shown_cells["method"] == ["roe"] * 2 + ["finetune-freeze"] * 2
    assert shown_cells["seeds"] == ["2"] * 4
    assert shown_cells["value"] == ["0.5000"] * 2 + ["0.6000"] * 2
    assert shown_cells["difference"] == ["+0.1000", "+0.0600", "+0.2000", "+0.1600"]
    assert shown_cells["against"] == ["base", "full fine tuning"] * 2
    over_seeds = ["[-0.0271, +0.2271]", "", "[+0.0729, +0.3271]", ""]
    assert shown_cells["95% over seeds"] == over_seeds, (
        "base: the larger p is Student's; else it is over documents"
    )
    assert len(table.lines) == 8 + 4, "the frame and the page have the seeds, too"


# Comparisons in words

SCORE = Score(
    model="tiny",
    method="roe",
    task="toy_math",
    metric="exact_match,none",
    run_id="r",
    n=200,
    value=0.61,
    baseline=0.58,
    difference=0.03,
    difference_interval=(-0.01, 0.07),
    p=0.24,
    test=MCNEMAR,
    changed=(12, 6),
)
ABOVE = {"p": None, "difference_interval": (0.01, 0.05)}
"""Without p, an interval above 0."""


def score_lines(*scores: Score) -> list[ScoreLine]:
    family = Family.of({score.comparison: score.p for score in scores})
    return [ScoreLine(family.correct(score), "") for score in scores]


@pytest.mark.parametrize(
    "changes, lower, outcome",
    [
        ({}, False, NOT_SIGNIFICANT),
        ({"p": 0.01}, False, BETTER),
        ({"p": 0.01}, None, DIFFERENT),
        ({"p": 0.049}, False, BETTER),
        ({"p": 0.05}, False, NOT_SIGNIFICANT),
        ({"p": 0.01}, True, WORSE),
        ({"p": 0.01, "difference": -0.03}, False, WORSE),
        (ABOVE | {"p": 0.06}, False, NOT_SIGNIFICANT),
        (ABOVE, False, BETTER),
        ({"p": None, "difference_interval": (-0.05, -0.01), "difference": -0.03}, True, BETTER),
        ({"p": None, "difference_interval": None}, False, NOT_SIGNIFICANT),
        (ABOVE | {"seeds": 3}, False, NOT_SIGNIFICANT),
        (ABOVE | {"seeds": 3, "p": 0.04}, False, BETTER),
        ({"p": None, "difference": 0.0, "difference_interval": (0.0, 0.0)}, False, NOT_SIGNIFICANT),
        # an interval that excludes 0 by rounding is not significant
        ({"p": None, "equal": True, "difference_interval": (1e-6, 2e-6)}, True, EQUAL_RUNS),
    ],
)
def test_p_decides_and_else_the_interval(changes, lower, outcome):
    [line] = score_lines(replace(SCORE, lower_is_better=lower, **changes))
    assert line.score.verdict == outcome
    assert by_outcome([line])[outcome] == [line]


def test_the_sentences_can_be_quoted():
    [line] = score_lines(SCORE)
    assert (
        conclusion([line])
        == sentence(line)
        == (
            "roe on toy_math does not differ significantly from the base model: exact_match,none "
            "+0.0300, 95% over "
            "documents [-0.0100, +0.0700], p 0.24; changed answers +12 -6."
        )
    )
    better = replace(
        SCORE,
        p=0.01,
        changed=None,
        other="full_fine_tuning",
        difference_both_interval=(0.01, 0.05),
        tested_over=BOTH,
    )
    score_sentences = score_lines(better, replace(SCORE, run_id="other"))
    assert sentence(score_sentences[0]) == (
        "roe on toy_math is better than full fine tuning: exact_match,none +0.0300, 95% over "
        "seeds and documents "
        "[+0.0100, +0.0500], p 0.01."
    ), "alone in the family of controls"
    assert conclusion(score_sentences).endswith(
        "base model and its controls: 1 better, 0 worse, 1 not significant."
    )
    [same_lines] = score_lines(replace(SCORE, p=None, equal=True))
    assert sentence(same_lines) == (
        "roe on toy_math equals the base model within rounding in every document "
        "(exact_match,none)."
    )


def test_a_score_without_comparison_a_part_of_a_group_and_one_of_several_seeds_have_no_verdict():
    """Like an expert metric, a part has no p. The group's comparison is the requested one."""
    score_alone = replace(SCORE, p=None, difference_interval=(0.01, 0.07))
    without = (
        replace(score_alone, marks=("part",)),
        replace(SCORE, difference=None),
        replace(SCORE, p=0.001),
    )
    assert has_verdict(score_alone), "but their mean has one"
    assert not any(map(has_verdict, without)), "but their mean has one"
