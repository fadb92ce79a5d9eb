"""Lines of tables. Broken by a place that no column shows, and by a column of documents that replaces a setting."""

from __future__ import annotations

from dataclasses import asdict

from moe_lab.reports.pages.record import axes_of, columns_of, latex_row, rows_of
from moe_lab.results.scores import Score

SCORE = Score(
    model="m", method="roe", task="t", metric="acc,none", run_id="r", n=100, value=0.5, interval=(0.4, 0.6)
)
CELL = {
    "coordinates": {"task": "t", "method.n": "8"},
    "score": asdict(SCORE),
    "published": None,
    "problem": None,
    "average": False,
}
PUBLISHED = {"cell": {"task": "u", "quantity": "memory"}, "value": 12, "fraction": 0.12, "mark": None}
RECORD = {
    "scale": "paper",
    "of_settings": False,
    "axes": ["model", "task", "method.n"],
    "cells": [CELL],
    "unmatched": [PUBLISHED],
}


def test_all_places_and_numbers_have_a_column():
    rows = rows_of(RECORD)
    assert [row.state for row in rows] == ["no published number", "not at this scale"]
    assert axes_of(RECORD, rows) == ["task", "method.n", "quantity"], "no line has a model"
    assert columns_of(rows) == {"n", "published"}
    assert rows_of(RECORD | {"of_settings": True}) == []


def test_agreement_is_measured_minus_published():
    [row] = rows_of(
        RECORD | {"cells": [CELL | {"published": PUBLISHED | {"fraction": 0.45}}], "unmatched": []}
    )
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
    cell = CELL | {"score": CELL["score"] | {"seed_interval": (0.3, 0.7)}}
    [row, _] = rows_of(RECORD | {"cells": [cell]})
    assert latex_row(row, [])["95% interval"] == "0.4000 to 0.6000, seeds 0.3000 to 0.7000"
    row.score["interval"] = None
    assert latex_row(row, [])["95% interval"] == "seeds 0.3000 to 0.7000"
