"""Broken by: a pruned trial that counts as a value, a maximum that is minimized."""

from __future__ import annotations

from moe_lab.reports.figures import write_study_figures
from moe_lab.reports.figures.studies import read_study
from tests.support.stored_studies import PROFILE, rows_of, write_study


def test_the_history_has_every_ended_trial_and_the_best_so_far(tmp_path):
    study = write_study(tmp_path / "s", [2.0, 2.5, None, 1.5, 1.75], temperature=PROFILE)
    rows = rows_of(write_study_figures(study)[1])
    told = [(row["trial"], row["state"], row["value"], row["estimate"], row["best"]) for row in rows]
    assert told == [
        ("0", "COMPLETE", "2.0", "", "2.0"),
        ("1", "COMPLETE", "2.5", "", "2.0"),
        ("2", "PRUNED", "", "9.9", "2.0"),
        ("3", "COMPLETE", "1.5", "", "1.5"),
        ("4", "COMPLETE", "1.75", "", "1.5"),
    ]
    assert {row["untuned"] for row in rows} == {"2.0"}


def test_an_accuracy_is_maximized(tmp_path):
    folder = write_study(
        tmp_path / "s", [0.5, 0.7, 0.7, 0.6], temperature=PROFILE, metric="accuracy", direction="maximize"
    )
    assert [row["best"] for row in rows_of(write_study_figures(folder)[1])] == ["0.5", "0.7", "0.7", "0.7"]
    assert read_study(folder).best.number == 1, "of equal ones the first"
