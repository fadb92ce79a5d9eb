"""Lines of tables. Broken by a place that no column shows, and by a column of documents that replaces a setting."""

from __future__ import annotations

from dataclasses import replace

from moe_lab.reports.pages.record import CellRecord, axes_of, columns_of, constant_axes, latex_row, rows_of
from moe_lab.reports.papers.experiment import Published
from moe_lab.results.scores import Score
from tests.support.stored_results import cell_table
from tests.support.views import table_record

SCORE = Score(
    model="m", method="roe", task="t", metric="acc,none", run_id="r", n=100, value=0.5, interval=(0.4, 0.6)
)
CELL = CellRecord(coordinates={"task": "t", "method.n": "8"}, score=SCORE)
PUBLISHED = Published(cell={"task": "u", "quantity": "memory"}, value=0.12, place="Figure 4")
RECORD = replace(
    table_record(cell_table(rows=["model", "task", "method.n"]).experiment, "tiny", []),
    scale="paper",
    cells=[CELL],
    unmatched=[PUBLISHED],
)


def test_all_places_and_numbers_have_a_column():
    rows = rows_of(RECORD)
    assert [row.state for row in rows] == ["no published number", "not at this scale"]
    assert axes_of(RECORD, rows) == ["task", "method.n", "quantity"], "no line has a model"
    assert columns_of(rows) == {"n", "published"}
    assert rows_of(replace(RECORD, of_settings=True)) == []


def test_an_axis_with_one_place_for_several_lines_is_constant():
    rows = rows_of(
        replace(
            RECORD, cells=[CELL, replace(CELL, coordinates={"task": "t", "method.n": "16"})], unmatched=[]
        )
    )
    assert constant_axes(["task", "method.n"], rows) == ["task"]
    assert constant_axes(["task", "method.n"], rows[:1]) == []


def test_agreement_is_measured_minus_published():
    cell = replace(CELL, published=replace(PUBLISHED, value=0.45))
    [row] = rows_of(replace(RECORD, cells=[cell], unmatched=[]))
    assert row.state == "agrees" and abs(row.off - 0.05) < 1e-12


def test_latex_keeps_the_setting_n_beside_the_documents():
    made = latex_row(rows_of(RECORD)[0], ["task", "method.n"])
    assert (made["n"], made["documents"], made["measured"], made["95% interval"]) == (
        "8",
        "100",
        "0.5000",
        "0.4000 to 0.6000",
    )


def test_latex_names_an_interval_over_seeds():
    score = replace(SCORE, seed_interval=(0.3, 0.7))
    for interval, text in (
        ((0.4, 0.6), "0.4000 to 0.6000, seeds 0.3000 to 0.7000"),
        (None, "seeds 0.3000 to 0.7000"),
    ):
        cell = replace(CELL, score=replace(score, interval=interval))
        [row, _] = rows_of(replace(RECORD, cells=[cell]))
        assert latex_row(row, [])["95% interval"] == text
