"""Tables as rows.

Broken by a number that differs from the stored one, a published number that gets lost,
a number of the toy world that is said to agree with a paper, an empty cell that gives no reason,
and a place that no column of the page shows.

Breaks if a column of several metrics is said to show one of them.

The correction of a command's p in a table. Broken by a difference that is not significant and bold,
and by a p that is corrected for other comparisons than the command's.

Averages over tasks, and groups of tasks.

Broken by an average over part of the tasks, by an interval that treats all documents as one sample,
by a group that loses its interval, by published numbers put next to the wrong task.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moe_lab.errors import ConfigError
from moe_lab.reports.pages.tables_page import shown_table
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment, Scale, find_experiments, load_experiment
from moe_lab.reports.papers.markdown import correction_note
from moe_lab.reports.papers.published import Published
from moe_lab.reports.papers.rows import Row, State, with_state
from moe_lab.reports.papers.table import Table
from moe_lab.results.model import RunResult, command_line
from moe_lab.results.score import Score
from moe_lab.results.scores import scores_of
from moe_lab.results.significance import holm
from moe_lab.results.statistics import interval_of_mean_of_tasks, score_interval, tango
from moe_lab.results.stored_files import typed
from tests.support.stored_results import cell_table, results_of
from tests.support.trained_cells import trained_results
from tests.support.views import csv_text, family_of, markdown, table, write_record

PAPER = [
    Published(cell={"task": "t"}, value=55.5, unit="percent", place="Table 9", mark="(?)"),
    Published(cell={"task": "gsm8k"}, value=0.5, place="Section 3"),
]
CELLS = [
    TableCell(coordinates={"task": "t"}, run_id="r", results=[results_of(value=0.625)]),
    TableCell(coordinates={"task": "u"}, run_id="q", problem="the disk is full"),
]
TABLE9 = cell_table(rows=["task"], paper=PAPER, name="roe/table9").experiment
PUBLISHED = Published(cell={}, value=0.5, place="Table 9")
SCORE = Score(
    model="m",
    method="roe",
    task="t",
    metric="acc,none",
    run_id="r",
    n=100,
    value=0.52,
    interval=(0.48, 0.56),
)
ROW = Row(coordinates={"task": "t", "method.n": "8"}, score=SCORE, state=State.NOT_PUBLISHED)


def test_what_is_written_is_read_again(tmp_path):
    content = json.loads(write_record(TABLE9, "tiny", CELLS, tmp_path).read_text())
    assert typed(Table, content) == table(TABLE9, "tiny", CELLS)


def test_commands_are_exact():
    assert command_line(["task=a b", "limit=5"]) == "python -m moe_lab 'task=a b' limit=5"
    command_text = command_line(["experiment=mine"], ["/my conf"])
    assert command_text == "python -m moe_lab --config-dir '/my conf' experiment=mine"


@pytest.mark.parametrize(
    "scale, score, published, problem, state",
    [
        ("paper", SCORE, PUBLISHED, None, State.AGREES),
        ("paper", SCORE, replace(PUBLISHED, value=0.57), None, State.DISAGREES),
        ("paper", replace(SCORE, marks=("PARTIAL",)), PUBLISHED, None, State.NOT_COMPARABLE),
        ("paper", replace(SCORE, interval=None), PUBLISHED, None, State.NOT_COMPARABLE),
        ("tiny", SCORE, PUBLISHED, None, State.NOT_COMPARABLE),
        ("tiny", SCORE, None, None, State.NOT_PUBLISHED),
        ("paper", None, PUBLISHED, "no GPU", State.FAILED),
        ("paper", replace(SCORE, value=None), PUBLISHED, None, State.FAILED),
        ("paper", None, PUBLISHED, None, State.NOT_RUN),
    ],
)
def test_states(scale, score, published, problem, state):
    row = with_state(Row(coordinates={}, score=score, published=published, problem=problem), scale)
    assert row.state == state
    assert row.reason or state in (State.AGREES, State.DISAGREES, State.NOT_PUBLISHED)
    assert problem is None or row.reason == problem
    difference = None
    if state in (State.AGREES, State.DISAGREES):
        difference = SCORE.value - published.value
    assert row.minus_published == pytest.approx(difference)


def test_a_missing_number_says_why():
    average = with_state(Row(coordinates={}, published=PUBLISHED, average=True), "paper")
    assert (average.state, average.reason) == (
        State.NOT_RUN,
        "not all cells of the average are measured",
    )
    stated = with_state(Row(coordinates={}, published=PUBLISHED, reason="no power meter"), "paper")
    assert (stated.state, stated.reason) == (State.NOT_RUN, "no power meter")


# The page's rows and columns


def on_page(tmp_path, *rows: Row, **changes):
    made = table(cell_table(rows=["model", "task", "method.n"]).experiment, "tiny", [])
    return shown_table(replace(made, rows=list(rows), **changes), tmp_path)


def headings(columns) -> list[str]:
    return [column.heading for column in columns.columns if column.shown]


def test_the_page_has_a_column_for_each_coordinate_and_number_of_its_rows(tmp_path):
    published = replace(PUBLISHED, cell={"task": "u", "quantity": "memory"})
    absent = Row(coordinates=published.cell, published=published, state=State.NOT_AT_SCALE)
    shown_columns = on_page(tmp_path, ROW, unmatched=[absent])
    states = [row["data-state"] for row in shown_columns.data]
    assert states == ["no published number", "not at this scale"]
    numbers = ["documents", "value", "95% over documents", "published", "place", "state"]
    assert headings(shown_columns) == ["task", "n", "quantity", *numbers], "no row has a model"
    assert on_page(tmp_path, ROW, figure="setup").columns == []


def test_a_number_that_a_design_does_not_have_is_no_empty_cell(tmp_path):
    """Expert choice has a leak, token choice has none."""
    cells = [
        TableCell(
            coordinates={"task": router}, run_id="r", metric="training.leak", results=[results]
        )
        for router, results in (
            ("expert", trained_results([1.0, 2.0], leak=0.5)),
            ("token", trained_results([1.0, 2.0])),
        )
    ]
    shown_columns = shown_table(
        table(cell_table(rows=["task"]).experiment, "tiny", cells), tmp_path
    )
    columns = [
        list(column.cells)
        for column in shown_columns.columns
        if column.heading in ("task", "value")
    ]
    assert columns == [["expert"], ["0.5000"]]


MEASURES = cell_table(rows=["task"], columns=["method"], scales={"paper": Scale()}).experiment


def cell_of_metric(task: str, metric: str) -> TableCell:
    metric_result = results_of(
        task={"name": task, "tasks": [task], "metric": metric}, samples={task: [0, 1]}
    )
    metric_result = RunResult(metric_result.content | {"results": {task: {metric: 0.5}}})
    return TableCell(
        coordinates={"task": task, "method": "base"}, run_id=task, results=[metric_result]
    )


def test_metrics_of_a_column_are_listed_with_their_tasks():
    cells = [
        cell_of_metric("a", "acc,none"),
        cell_of_metric("b", "exact_match,strict-match"),
        cell_of_metric("c", "acc,none"),
    ]
    assert "- base: acc,none (a, c); exact_match,strict-match (b)" in markdown(
        MEASURES, "paper", cells
    )
    assert "- base: acc,none\n" in markdown(MEASURES, "paper", [cells[0], cells[2]])


CORRECTED_TABLE = cell_table(rows=["row"], scales={"paper": Scale()}).experiment


def cell_with_p(row: str, p: float | None, full: float | None = None) -> TableCell:
    """A cell with p against base, and against full fine-tuning."""

    def paired(p: float | None) -> dict:
        return {"t": {"acc,none": {"difference": 0.1, "ci95": [0.05, 0.15], "p_mcnemar": p}}}

    control = {"full": {"run_id": "f", "results": {}, "paired": paired(full)}}
    compared = {} if full is None else {"compared": control}
    results = [results_of(run_id=row, paired=paired(p), **compared)]
    return TableCell(coordinates={"row": row}, run_id=row, results=results)


CORRECTED_CELLS = [
    cell_with_p("one", 0.01, full=0.02),
    cell_with_p("two", 0.04),
    cell_with_p("three", None),
]
CORRECTED = {"scores": holm([0.01, 0.04]), "controls": [0.02]}


def test_the_comparisons_of_a_question_are_corrected_together():
    """Broken by a control that changes the p of the scores."""
    family = family_of(CORRECTED_TABLE, CORRECTED_CELLS)
    first, second, third = (cell.scores(family) for cell in CORRECTED_CELLS)
    assert [score["base"].p_holm for score in (first, second)] == pytest.approx(CORRECTED["scores"])
    assert first["full"].p_holm == CORRECTED["controls"][0]
    assert third["base"].p_holm is None
    note = correction_note([*first.values(), *second.values(), *third.values()])
    assert note.endswith("Comparisons: scores: 2, controls: 1.")
    assert "corrected by Holm" in note


def test_one_comparison_needs_no_correction():
    text = markdown(CORRECTED_TABLE, "paper", [cell_with_p("one", 0.04)])
    assert "**+0.1000 [+0.0500, +0.1500]** (p=0.04) |" in text
    assert "Bold differences are statistically significant." in text
    assert "Bold" not in markdown(CORRECTED_TABLE, "paper", [cell_with_p("one", None)])


EXPERIMENT = """\
# A table for tests
title: "Table A"
source: "A paper"
scales: {tiny: {}}
rows: [method]
columns: [task]
average: task
paper:
  - cell: {method: base, task: [a, b, average]}
    value: [50.0, 70, 60]
    unit: percent
    place: "Table 1"
    mark: "(?)"
"""


def experiment_of(folder: Path, text: str = EXPERIMENT) -> Experiment:
    (folder / "a.yaml").write_text(text)
    return load_experiment("paper/a", folder / "a.yaml")


def cell_of(task: str, value: float | None, **changes: Any) -> TableCell:
    coordinates = {"method": "base", "task": task}
    if value is None:
        return TableCell(coordinates=coordinates, run_id=None, problem="no data")
    results = results_of(method="base", value=value, run_id=f"run-{task}", **changes)
    return TableCell(coordinates=coordinates, run_id=f"run-{task}", results=[results])


def test_the_interval_of_a_mean_follows_from_its_parts():
    """Of equal parts it is narrower by the root of their number; a skewed part leaves it skewed."""
    low, high = interval_of_mean_of_tasks([0.5] * 4, [(0.4, 0.6)] * 4)
    assert (low, high) == pytest.approx((0.45, 0.55))
    low, high = interval_of_mean_of_tasks([2.0] * 4, [(2.2, 2.4)] * 4)
    assert (low, high) == pytest.approx((2.25, 2.35)), (
        "of intervals that correct a bias, as of any others"
    )
    low, high = interval_of_mean_of_tasks([0.9, 0.5], [(0.6, 1.0), (0.5, 0.5)])
    assert (low, high) == pytest.approx((0.55, 0.75))


def test_an_axis_that_is_not_shown_leaves_the_average_alone(tmp_path):
    experiment = experiment_of(tmp_path, EXPERIMENT.replace("columns: [task]", "columns: []"))
    cells = [cell_of("a", 0.4), cell_of("b", 0.6)]
    text = markdown(experiment, "tiny", cells)
    header, _, line = [line for line in text.splitlines() if line.startswith("|")]
    assert header == "| method | documents | average | average, published |"
    assert line.startswith("| base | 8 | 0.5000 [")
    assert [row.split(",")[1] for row in csv_text(experiment, cells).splitlines()] == [
        "task",
        "a",
        "b",
        "average",
    ]


def test_lists_of_published_numbers_must_match(tmp_path):
    with pytest.raises(ConfigError, match="lists 3 names"):
        experiment_of(tmp_path, EXPERIMENT.replace("[50.0, 70, 60]", "[50.0, 70]"))


def group_of(score: float) -> RunResult:
    """Two subjects: 2 of 4 right and 9 of 12 right.

    The first gains one. The second gains five and loses two.
    """
    flips = {"x": (1, 0), "y": (5, 2)}
    paired = {
        name: {
            "acc,none": {"difference": 0.25, "ci95": [0.0, 0.5], "to_right": won, "to_wrong": lost}
        }
        for name, (won, lost) in flips.items()
    }
    results = results_of(
        method="roe",
        task={"name": "g", "tasks": ["x", "y"], "metric": "acc,none"},
        samples={"x": list(range(4)), "y": list(range(12))},
        intervals={name: {"acc,none": [0.3, 0.7]} for name in "xy"},
        paired=paired,
        baseline={"run_id": "b", "results": {"x": {"acc,none": 0.25}, "y": {"acc,none": 0.5}}},
    )
    values = {"h": 0.5, "g": score, "x": 0.5, "y": 0.75}
    scores = {name: {"acc,none": value} for name, value in values.items()}
    groups = {"groups": {"h": {}, "g": {}}, "group_subtasks": {"g": ["h", "y"], "h": ["x"]}}
    return RunResult(results.content | {"results": scores} | groups)


def test_a_group_is_one_sample_of_its_documents():
    rows = scores_of(group_of(11 / 16))
    assert [row.task for row in rows] == ["g", "h", "x", "y"], "what was asked for stands first"
    row = rows[0]
    assert (row.value, row.n, row.changed) == (11 / 16, 16, (6, 2))
    assert row.interval == score_interval([1] * 11 + [0] * 5)
    assert (row.difference, row.baseline) == (0.25, 7 / 16)
    assert (row.p, row.test) == (pytest.approx(0.289, abs=1e-3), "McNemar")
    assert row.difference_interval == tango(6, 2, 16)


def test_a_group_that_counts_its_tasks_alike_has_no_interval():
    row = scores_of(group_of(0.625))[0]
    assert (row.value, row.interval, row.difference) == (0.625, None, None)


def published_lines(experiment: Experiment) -> dict[tuple[tuple[str, str], ...], dict[str, float]]:
    """The paper's numbers by task, for each line of its table.

    Lines are left out where the paper's own average is marked as wrong.
    """
    lines: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for entry in experiment.paper:
        if experiment.average in entry.cell and "average" not in (entry.mark or ""):
            place = tuple(pair for pair in entry.cell.items() if pair[0] != experiment.average)
            lines.setdefault(place, {})[entry.cell[experiment.average]] = entry.value
    return lines


def test_published_averages_are_those_of_the_published_tasks():
    """Broken by a number that was typed wrong, and by one in another task's place."""
    checked = 0
    for name in ("c3po/table1", "c3po/table2", "c3po/figure1"):
        for place, line in published_lines(find_experiments(name)[0]).items():
            average = line.pop("average")
            assert average == pytest.approx(sum(line.values()) / 6, abs=0.055), place
            checked += len(line) == 6
    assert checked == 15 + 19 + 7


@pytest.mark.parametrize(
    "averaged, of, lines",
    [
        ("table3", "table9", 7),
        ("table4", "table10", 7),
        ("table5", "table11", 6),
        ("table6", "table14", 4),
    ],
)
def test_tables_of_averages_are_those_of_the_long_tables(averaged, of, lines):
    """The appendix has the benchmarks' numbers, the text their means; Table 14 has no base row."""
    long = published_lines(find_experiments(f"c3po/{of}")[0])
    checked = 0
    for place, line in published_lines(find_experiments(f"c3po/{averaged}")[0]).items():
        if place in long:
            checked += 1
            assert line["average"] == pytest.approx(sum(long[place].values()) / 6, abs=0.006)
    assert checked == lines
